"""The JSON form of benchmark results, shared by the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any


def report(rows: Sequence[Any], **settings: Any) -> dict[str, Any]:
    """Return the settings of a run and its rows (dataclasses) as one object for a JSON file."""
    return {**settings, "rows": [asdict(row) for row in rows]}
