"""One run over many documents: whose turn it is, what a death costs, what is left when it goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..errors import UnlimiformerError
from .documents import Document
from .job import Job, failure
from .pool import Died, Done, Ready, WorkerPool
from .pool_size import create_pool
from .results import ResultFile

_LIVES = 3  # workers that may die at a document before it is given up
_FALSE_STARTS = 3  # workers that may die in a row while they load their model; then those that live go on alone
_PATIENCE = 120.0  # seconds without any worker, until that is said
_EACH = 4000  # bytes that a document counts beside its own, in estimates
_NEARLY = 0.95  # of what a worker is at, done at most
_SHARES = 2  # parts that every worker should still get of what waits, before documents are put together


@dataclass(frozen=True)
class Status:
    """How far a run is. `share` and `left` (seconds) go by the documents' lengths; None: nobody can say yet."""

    documents: int
    done: int
    failed: int
    workers: int
    share: float
    left: float | None


@dataclass(frozen=True)
class Summary:
    """What a run did now, and what there is. `seconds` are from the first worker's being ready."""

    documents: int
    done: int
    failed: int
    done_before: int
    seconds: float
    starting_seconds: float
    documents_per_hour: float
    workers: int
    deaths: int


def run(
    documents: Sequence[Document],
    output: str | Path,
    work: Job,
    workers: int | None = None,
    retry_failed: bool = False,
    ray: str | None = None,
    gpus: float | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    log: Callable[[str], None] = lambda line: None,
    progress: Callable[[Status], None] = lambda status: None,
) -> Summary:
    """Does the work on every document that has no row in the output yet. The same call again goes on.

    `workers` are processes on this machine, or with `ray`, the address of a cluster, its actors; None: as many as there
    is room for. `threads` are those of each. A worker that is at a document for longer than `timeout` seconds is ended.
    """
    path = Path(output)
    if timeout is not None and timeout <= 0:
        raise UnlimiformerError(f"timeout is {timeout}; expected more than 0")
    with ResultFile.open(path, work.identity()) as ledger:
        missing = ledger.missing(documents, retry_failed)
        before = len(documents) - len(missing)
        if before:
            log(f"{before:,} of {len(documents):,} documents are done")
        if foreign := ledger.foreign(documents):
            log(f"{foreign:,} rows of {path} belong to other documents, and stay")
        for document in missing:
            if document.error is not None:
                ledger.write(failure(document, document.error))
                log(f"failed: {document.id}: {document.error}")
        missing = [document for document in missing if document.error is None]
        if not missing:
            return Summary(len(documents), len(documents), ledger.failures(documents), before, 0.0, 0.0, 0.0, 0, 0)
        crew, count = create_pool(work, len(missing), workers, ray, gpus, threads, log)
        try:
            return Scheduler(documents, missing, before, ledger, work, crew, count, timeout, log, progress).go()
        finally:
            crew.close()


class Scheduler:
    """What is waiting, who is at what, and what came of it."""

    def __init__(
        self,
        documents: Sequence[Document],
        missing: Sequence[Document],
        before: int,
        ledger: ResultFile,
        work: Job,
        crew: WorkerPool,
        workers: int,
        timeout: float | None,
        log: Callable[[str], None],
        progress: Callable[[Status], None],
    ) -> None:
        self._documents, self._ledger, self._work, self._crew = documents, ledger, work, crew
        self._say, self._progress, self._workers, self._timeout = log, progress, workers, timeout
        self._given: dict[int, float] = {}
        self._late: set[int] = set()
        self._warned = False
        self._before = before
        self._known = len(documents) - len(missing)
        self._failed = ledger.failures(documents)
        self._waiting = deque(sorted(missing, key=lambda document: -document.size))  # else a long one ends up last
        self._at: dict[int, list[Document]] = {}
        self._idle: set[int] = set()
        self._starting: set[int] = set()
        self._deaths: dict[str, int] = {}
        self._all_deaths = self._false_starts = 0
        self._done, self._done_weight, self._worked = 0, 0, 0.0
        self._weight = sum(map(_weight, missing))
        self._began, self._first_ready = time.perf_counter(), 0.0

    def go(self) -> Summary:
        """Until nothing is left to do."""
        for _ in range(self._workers):
            self._starting.add(self._crew.start())
        while self._waiting or self._at:
            for worker in list(self._idle):
                if self._waiting:
                    self._give(worker)
            for event in self._crew.events(1.0):
                if isinstance(event, Ready):
                    self._ready(event)
                elif isinstance(event, Done):
                    self._finished(event)
                else:
                    self._died(event)
            self._dismiss_late_ones()
            self._warn_of_waiting()
            self._progress(self._status())
        return self._summary()

    def _give(self, worker: int) -> None:
        fair = -(-len(self._waiting) // (_SHARES * self._workers))
        head = [self._waiting[place] for place in range(min(len(self._waiting), fair, self._work.batch_size))]
        harmless = list(takewhile(lambda document: document.id not in self._deaths, head))
        count = self._work.batch(harmless) if harmless else 1  # what may have killed a worker is done alone
        documents = [self._waiting.popleft() for _ in range(count)]
        self._idle.discard(worker)
        self._at[worker] = documents
        self._given[worker] = time.perf_counter()
        self._crew.give(worker, documents)

    def _dismiss_late_ones(self) -> None:
        for worker, documents in self._at.items():
            allowed = None if self._timeout is None else self._timeout * len(documents)
            if allowed is not None and worker not in self._late and time.perf_counter() - self._given[worker] > allowed:
                self._late.add(worker)
                self._crew.kill(worker)

    def _warn_of_waiting(self) -> None:
        if not self._warned and not self._first_ready and time.perf_counter() - self._began > _PATIENCE:
            self._warned = True
            self._say(f"no worker is ready after {_PATIENCE:.0f} s: the model is large, or the cluster has no room now")

    def _ready(self, event: Ready) -> None:
        self._starting.discard(event.worker)
        self._ledger.pin("model_digest", event.about["model_digest"])
        self._false_starts = 0
        self._first_ready = self._first_ready or time.perf_counter()
        self._idle.add(event.worker)

    def _finished(self, event: Done) -> None:
        documents = self._at.pop(event.worker)
        self._worked += time.perf_counter() - self._given[event.worker]
        if event.worker in self._late:  # it was done as it was dismissed
            self._late.discard(event.worker)
        else:
            self._idle.add(event.worker)
        for document, row in zip(documents, event.rows, strict=True):
            self._note(document, row)

    def _note(self, document: Document, row: dict[str, Any]) -> None:
        self._ledger.write(row)
        self._done += 1
        self._done_weight += _weight(document)
        if "error" in row:
            self._failed += 1
            self._say(f"failed: {document.id}: {row['error']}")

    def _died(self, event: Died) -> None:
        """What it was at is done again by others; another takes its place, while there is something to do."""
        self._all_deaths += 1
        self._idle.discard(event.worker)
        if event.worker in self._starting:
            self._starting.discard(event.worker)
            self._false_starts += 1
        else:
            self._false_starts = 0
        lost = self._at.pop(event.worker, [])
        self._say(f"a worker ended ({event.reason}); {len(lost)} documents are done again")
        for document in reversed(lost):
            self._deaths[document.id] = self._deaths.get(document.id, 0) + 1
            if event.worker in self._late and len(lost) == 1:
                self._note(document, failure(document, f"it took more than {self._timeout:g} s (--timeout)"))
            elif self._deaths[document.id] >= _LIVES:
                reason = f"{_LIVES} workers ended while they were at it, the last with {event.reason}"
                self._note(document, failure(document, reason))
            else:
                self._waiting.appendleft(document)
        if self._false_starts < _FALSE_STARTS:
            if self._waiting or self._at:
                self._starting.add(self._crew.start())
        elif not (self._idle or self._at or self._starting):
            raise UnlimiformerError(
                f"{self._false_starts} workers in a row ended while they loaded the model ({event.reason}); is there "
                "room for it? Fewer workers need less"
            )

    def _status(self) -> Status:
        workers, done, left = len(self._idle) + len(self._at), float(self._done_weight), None
        if self._done_weight and self._worked:
            rate = self._done_weight / self._worked  # of one worker
            done += sum(self._probably_done(worker, rate) for worker in self._at)
            left = (self._weight - done) / (rate * max(1, workers))
        share = done / self._weight
        return Status(len(self._documents), self._known + self._done, self._failed, workers, share, left)

    def _probably_done(self, worker: int, rate: float) -> float:
        """Of what a worker is at, as much as it had the time for."""
        return min(_NEARLY * sum(map(_weight, self._at[worker])), rate * (time.perf_counter() - self._given[worker]))

    def _summary(self) -> Summary:
        seconds = time.perf_counter() - self._first_ready
        return Summary(
            len(self._documents),
            self._known + self._done,
            self._failed,
            self._before,
            seconds,
            self._first_ready - self._began,
            3600 * self._done / seconds,
            self._workers,
            self._all_deaths,
        )


def _weight(document: Document) -> int:
    return document.size + _EACH
