"""The output file of a batch run: one row per document, appended when the document is finished."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..utils.resumable_run import ResumableRun
from .documents import Document
from .job import ResultRow


class _Entry(NamedTuple):
    """What is remembered of a row: few bytes, since there may be millions."""

    digest: str
    failed: bool


class ResultFile:
    """An output file that a run can continue. Rows have the `id` and `digest` of their document; failures an `error`.

    The settings are stored next to it, in `<output>.settings.json`.
    """

    def __init__(self, run: ResumableRun) -> None:
        self._run = run
        self._entries: dict[str, _Entry] = {}
        for row in run.rows():
            if not isinstance(row.get("id"), str) or not isinstance(row.get("digest"), str):
                raise InputError(f"{run.path} has a row without id and digest; remove it, then run the command again")
            self._remember(row)

    @classmethod
    @contextmanager
    def open(cls, path: Path, identity: dict[str, Any]) -> Iterator[ResultFile]:
        """Lock an output file for a job with this identity; one of a different job, or in use, is refused."""
        settings = path.with_name(path.name + ".settings.json")
        with ResumableRun.open(rows=path, settings=settings, identity=identity) as run:
            yield cls(run)

    def pin_model(self, digest: str) -> None:
        """Store the digest of the workers' model; a run that was started with another is refused."""
        self._run.pin_model(digest)

    def missing(self, documents: Sequence[Document], retry_failed: bool = False) -> list[Document]:
        """Return the documents without a row.

        Outdated rows are removed before: of documents that have changed, of failures whose document is no longer part
        of the input and, with `retry_failed`, of all failures.
        """
        by_id = {document.id: document for document in documents}
        outdated = set()
        for name, entry in self._entries.items():
            document = by_id.get(name)
            if (entry.failed and (document is None or retry_failed)) or (document and entry.digest != document.digest):
                outdated.add(name)
        if outdated:
            self._remove(outdated)
        return [document for document in documents if document.id not in self._entries]

    def count_unrelated(self, documents: Iterable[Document]) -> int:
        """Count the rows that belong to none of these documents."""
        return len(self._entries.keys() - {document.id for document in documents})

    def count_failures(self, documents: Iterable[Document]) -> int:
        """Count the documents whose row is a failure."""
        entries = (self._entries.get(document.id) for document in documents)
        return sum(entry is not None and entry.failed for entry in entries)

    def write(self, row: ResultRow) -> None:
        """Append the row of a document, which has none yet."""
        assert row["id"] not in self._entries, "a document has one row"
        self._run.append(row)
        self._remember(row)

    def _remember(self, row: ResultRow) -> None:
        self._entries[row["id"]] = _Entry(row["digest"], "error" in row)

    def _remove(self, names: set[str]) -> None:
        self._run.rewrite(keep=lambda row: row["id"] not in names)
        for name in names:
            del self._entries[name]
