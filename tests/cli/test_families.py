"""`unlimiformer families`."""

from __future__ import annotations

import json

from warm_cli import run


def test_families_come_from_the_registry():
    rows = json.loads(run("families", "--json").stdout)
    kinds = [row["kind"] for row in rows]
    assert (kinds.count("encoder–decoder"), kinds.count("decoder-only")) == (25, 13)
    assert all(set(row) == {"family", "kind", "status"} and row["status"] == "supported" for row in rows)
