"""How far a batch run is: counts of documents, and an estimate of the remaining time from their sizes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from .documents import Document
from .job import ResultRow

_DOCUMENT_OVERHEAD = 4000  # bytes that stand for the time a document takes regardless of its size
_MAX_SHARE = 0.95  # of an unfinished batch, counted as done at most


@dataclass(frozen=True)
class Status:
    """State of a run.

    Parameters
    ----------
    workers : workers that have loaded their model.
    share : finished part of the work, from 0 to 1, weighted by document size.
    left : estimated seconds until the end; None before the first document is finished.
    """

    documents: int
    done: int
    failed: int
    workers: int
    share: float
    left: float | None


@dataclass(frozen=True)
class Summary:
    """Result of a run.

    Parameters
    ----------
    done_before : documents that earlier runs had finished.
    seconds : time since the first worker was ready.
    starting_seconds : time until then.
    documents_per_hour : speed of this run.
    deaths : workers that died and had to be replaced.
    """

    documents: int
    done: int
    failed: int
    done_before: int
    seconds: float
    starting_seconds: float
    documents_per_hour: float
    workers: int
    deaths: int


class ProgressTracker:
    """Count finished documents and measure the workers' speed.

    Parameters
    ----------
    documents : number of documents of the input.
    done_before : those that earlier runs had finished.
    failed : those that have a failure row already.
    queue : those to be processed now.
    """

    def __init__(self, *, documents: int, done_before: int, failed: int, queue: Sequence[Document]) -> None:
        self._documents, self._done_before, self._failed = documents, done_before, failed
        self._done_at_start = documents - len(queue)
        self._processed = 0
        self._total_weight = sum(map(_weight, queue))
        self._done_weight = 0
        self._busy_seconds = 0.0
        self._started = 0.0
        self._first_ready: float | None = None

    def start(self) -> None:
        """Start the clock: the workers are being started."""
        self._started = time.perf_counter()

    def mark_ready(self) -> None:
        """Record that a worker is ready; the speed is measured from the first one on."""
        if self._first_ready is None:
            self._first_ready = time.perf_counter()

    @property
    def waiting_seconds(self) -> float:
        """Seconds since the start without any worker; 0 once a worker was ready."""
        return 0.0 if self._first_ready is not None else time.perf_counter() - self._started

    def add_busy(self, seconds: float) -> None:
        """Record the time that a worker took for a finished batch."""
        self._busy_seconds += seconds

    def add(self, document: Document, row: ResultRow) -> None:
        """Record a finished or failed document."""
        self._processed += 1
        self._done_weight += _weight(document)
        self._failed += "error" in row

    def status(self, workers: int, running: Sequence[tuple[Sequence[Document], float]]) -> Status:
        """Return the current state; `running` has each unfinished batch with the seconds it has taken so far."""
        done_weight, left = float(self._done_weight), None
        if self._done_weight and self._busy_seconds:
            speed = self._done_weight / self._busy_seconds  # of one worker
            for documents, seconds in running:
                done_weight += min(_MAX_SHARE * sum(map(_weight, documents)), speed * seconds)
            left = (self._total_weight - done_weight) / (speed * max(1, workers))
        return Status(
            documents=self._documents,
            done=self._done_at_start + self._processed,
            failed=self._failed,
            workers=workers,
            share=done_weight / self._total_weight,
            left=left,
        )

    def summary(self, workers: int = 0, deaths: int = 0) -> Summary:
        """Return the result of a run that has ended."""
        ready = self._first_ready
        seconds = 0.0 if ready is None else time.perf_counter() - ready
        return Summary(
            documents=self._documents,
            done=self._done_at_start + self._processed,
            failed=self._failed,
            done_before=self._done_before,
            seconds=seconds,
            starting_seconds=0.0 if ready is None else ready - self._started,
            documents_per_hour=3600 * self._processed / seconds if seconds else 0.0,
            workers=workers,
            deaths=deaths,
        )


def _weight(document: Document) -> int:
    return document.size + _DOCUMENT_OVERHEAD
