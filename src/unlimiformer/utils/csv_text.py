"""Rows as the text of a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """A head with the keys of the first row, and a line for every row."""
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()
