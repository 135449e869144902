"""JSON Lines files that are appended to row by row, so that a killed process loses at most its last row."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from ..errors import InputError

JSON_ERRORS = (ValueError, RecursionError)
"""What `json.loads` raises for bytes that are no JSON: no UTF-8, another syntax, or nested too deeply."""
_BLOCK = 1 << 16  # bytes read at once while searching for the last line break


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read all rows of a file. An incomplete last line, left by a killed process, is removed from the file."""
    if not path.exists():
        return
    _remove_incomplete_line(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except JSON_ERRORS:
                row = None
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number} is not a JSON object; repair or remove that line")
            yield row


def append_row(file: TextIO, row: dict[str, Any]) -> None:
    """Append one row and flush."""
    file.write(to_line(row))
    file.flush()


def to_line(row: dict[str, Any]) -> str:
    """Format a row as one line of a JSON Lines file."""
    return json.dumps(row, ensure_ascii=False) + "\n"


def _remove_incomplete_line(path: Path) -> None:
    """Truncate a file after its last line break, which is searched for backwards from the end."""
    with path.open("rb") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            last_break = file.read(end - start).rfind(b"\n")
            if last_break >= 0:
                end = start + last_break + 1
                break
            end = start
    if end < size:
        os.truncate(path, end)
