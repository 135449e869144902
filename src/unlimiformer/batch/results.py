"""The output of a run: one row for each document, written when it is done; and what the run was begun with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ..errors import UnlimiformerError
from ..utils.files import atomic_write, friendly_os_errors
from ..utils.jsonl import append_row, read_rows, settings_diff, to_line
from .documents import Document

_ESCAPED = "backslashreplace"  # what no file can hold, such as a bad name in an error, is written as JSON can have it


class ResultFile:
    """An output file. Rows have the `id` and `digest` of their document; those of failures have an `error`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._settings = path.with_name(path.name + ".settings.json")
        self._rows: dict[str, tuple[str, bool]] = {}
        self._file: TextIO

    @classmethod
    @contextmanager
    def open(cls, path: Path, settings: dict[str, Any]) -> Iterator[ResultFile]:
        """Takes a file for a run with these settings; one that has other rows, or another run, is refused."""
        from filelock import FileLock, Timeout

        ledger = cls(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path.with_name(path.name + ".lock"))
            lock.acquire(timeout=0)
        except Timeout:
            raise UnlimiformerError(
                f"another run is writing {path}; wait for it to end, or give another output"
            ) from None
        except OSError as error:
            raise UnlimiformerError(f"cannot write {path}: {error.strerror}") from None
        try:
            ledger._begin(settings)
            ledger._open()
            try:
                yield ledger
            finally:
                ledger._file.close()
        finally:
            lock.release()

    def pin(self, name: str, value: Any) -> None:
        """Notes what became known of the settings later; another value than before is refused."""
        told = json.loads(self._settings.read_text(encoding="utf-8"))
        if told.get(name) not in (None, value):
            raise UnlimiformerError(
                f"{self.path} was begun with another {name.replace('_', ' ')}: other weights, or the same in another "
                "precision, as machines without bfloat16 have them; go on with the one it was begun with, or give "
                "another output"
            )
        if name not in told:
            atomic_write(self._settings, json.dumps({**told, name: value}, indent=1) + "\n")

    def missing(self, documents: Sequence[Document], retry_failed: bool = False) -> list[Document]:
        """Documents without a row of their own. Rows are removed of those that have changed, of failed ones if wanted,
        and of failed ones that are no longer there."""
        by_id = {document.id: document for document in documents}
        stale = set()
        for name, (digest, failed) in self._rows.items():
            document = by_id.get(name)
            if (failed and (document is None or retry_failed)) or (document and digest != document.digest):
                stale.add(name)
        if stale:
            self._remove(stale)
        return [document for document in documents if document.id not in self._rows]

    def foreign(self, documents: Iterable[Document]) -> int:
        """How many rows belong to none of these."""
        return len(self._rows.keys() - {document.id for document in documents})

    def failures(self, documents: Iterable[Document]) -> int:
        """How many of these have a row that says why they failed."""
        return sum(self._rows.get(document.id, ("", False))[1] for document in documents)

    def write(self, row: dict[str, Any]) -> None:
        """A document's only row."""
        assert row["id"] not in self._rows, "a document is done once"
        with friendly_os_errors(self.path, resumable=True):
            append_row(self._file, row)
        self._rows[row["id"]] = (row["digest"], "error" in row)

    def _open(self) -> None:
        self._file = self.path.open("a", encoding="utf-8", errors=_ESCAPED)

    def _begin(self, settings: dict[str, Any]) -> None:
        settings = json.loads(json.dumps(settings))
        rows = self.path.exists() and self.path.stat().st_size > 0
        if rows and not self._settings.exists():
            raise UnlimiformerError(f"{self.path} exists and was not written by a run; give another output")
        if not rows:
            atomic_write(self._settings, json.dumps(settings, indent=1) + "\n")
        kept = json.loads(self._settings.read_text(encoding="utf-8"))
        if values := settings_diff(kept, settings):
            raise UnlimiformerError(f"{self.path} was begun with {values}; give these, or another output")
        for row in read_rows(self.path):
            if not isinstance(row.get("id"), str) or not isinstance(row.get("digest"), str):
                raise UnlimiformerError(f"{self.path} has a row without id and digest; remove it, and the run goes on")
            self._rows[row["id"]] = (row["digest"], "error" in row)

    def _remove(self, names: set[str]) -> None:
        part = self.path.with_name(self.path.name + ".part")
        with friendly_os_errors(self.path, resumable=True):
            with part.open("w", encoding="utf-8", errors=_ESCAPED) as file:
                file.writelines(to_line(row) for row in read_rows(self.path) if row["id"] not in names)
            self._file.close()
            part.replace(self.path)
            self._open()
        for name in names:
            del self._rows[name]
