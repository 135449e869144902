"""Rows of a benchmark script that has not finished, so that the same command continues after an interruption.

Rows go to `build/bench/NAME.jsonl` as soon as they are measured; the first line has the settings of the run. With
other settings the run starts again. The file is removed when the results are written.
"""

import json
from pathlib import Path
from typing import Any

from unlimiformer.utils.files import atomic_write
from unlimiformer.utils.jsonl import append_row, read_rows, to_line

FOLDER = Path(__file__).parent.parent / "build" / "bench"
RESULTS = Path(__file__).with_name("results")


class PartialRun:
    """The rows of a benchmark that are measured so far; `settings` say what is measured."""

    def __init__(self, name: str, **settings: Any) -> None:
        self._name = name
        self._path = FOLDER / f"{name}.jsonl"
        header = json.loads(json.dumps({"settings": settings}))  # as it is when it is read from the file
        lines = list(read_rows(self._path))
        if lines[:1] != [header]:
            FOLDER.mkdir(parents=True, exist_ok=True)
            atomic_write(self._path, to_line(header))
            lines = [header]
        self.rows: list[dict] = lines[1:]
        if self.rows:
            print(f"continuing after {len(self.rows)} rows in {self._path}; remove it to start again", flush=True)

    def add(self, row: dict) -> None:
        """Append one row; it is on disk when this returns."""
        with self._path.open("a", encoding="utf-8") as file:
            append_row(file, row)
        self.rows.append(row)

    def finish(self, results: dict, path: Path | None = None) -> None:
        """Write the results to bench/results (or to `path`), and remove the file of the partial run."""
        atomic_write(path or RESULTS / f"{self._name}.json", json.dumps(results, indent=1) + "\n")
        self._path.unlink()
