"""Runs that go on: JSON objects, one a line, appended as they come (a kill costs half a line at most), and settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from ..errors import UnlimiformerError


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """All rows of a file; a last line that was cut off is forgotten, also in the file."""
    if not path.exists():
        return
    _forget_half_a_line(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise UnlimiformerError(
                    f"{path}, line {number} is no row; mend or remove that line, and the run goes on"
                )
            yield row


def settings_diff(kept: dict[str, Any], wanted: dict[str, Any]) -> str:
    """What a run was begun with where something else is wanted, in words; empty where nothing is."""
    return ", ".join(f"{name} {kept.get(name)!r}" for name, value in wanted.items() if kept.get(name) != value)


def append_row(file: TextIO, row: dict[str, Any]) -> None:
    """A row more, which the system has when this returns."""
    file.write(to_line(row))
    file.flush()


def to_line(row: dict[str, Any]) -> str:
    """As it stands in a file."""
    return json.dumps(row, ensure_ascii=False) + "\n"


def _forget_half_a_line(path: Path) -> None:
    with path.open("rb") as file:
        end = place = file.seek(0, 2)
        while place > 0:  # from the end, a block at a time, to the last line's end
            start = max(0, place - (1 << 16))
            file.seek(start)
            found = file.read(place - start).rfind(b"\n")
            if found >= 0:
                place = start + found + 1
                break
            place = start
    if place < end:
        os.truncate(path, place)
