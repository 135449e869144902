"""Run a job on many documents: schedule batches, replace dead workers, continue an earlier run."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ..errors import InputError
from .documents import Document
from .job import Job, ResultRow, failure_row
from .options import RunOptions
from .pool import Died, Done, Event, Ready, WorkerPool
from .pool_size import create_pool
from .progress import ProgressTracker, Status, Summary
from .results import ResultFile

_MAX_DEATHS = 3  # workers that may die while processing a document before it counts as failed
_MAX_FAILED_STARTS = 3  # workers in a row that may die while loading; afterwards none is replaced
_START_WARNING = 120.0  # seconds without any worker before a warning
_EVENT_TIMEOUT = 1.0  # seconds between two updates of the progress
_MIN_BATCHES = 2  # batches that each worker should still get from the queue; limits how many documents share one


def run(
    documents: Sequence[Document],
    output: str | Path,
    job: Job,
    options: RunOptions | None = None,
    *,
    log: Callable[[str], None] = lambda line: None,
    progress: Callable[[Status], None] = lambda status: None,
) -> Summary:
    """Process every document that has no row in the output yet. The same call continues a run that was stopped.

    Parameters
    ----------
    output : JSONL file, one row per document; created, or continued if it was written by the same job.
    options : workers, timeout and retries.
    log : called with lines for the user.
    progress : called about once a second.
    """
    path, options = Path(output), options or RunOptions()
    with ResultFile.open(path, job.identity()) as results:
        missing = results.missing(documents, options.retry_failed)
        done_before = len(documents) - len(missing)
        if done_before:
            log(f"{done_before:,} of {len(documents):,} documents are done already")
        if unrelated := results.count_unrelated(documents):
            log(f"{unrelated:,} rows of {path} belong to other documents and are kept")
        queue = _write_unreadable(missing, results, log)
        tracker = ProgressTracker(
            documents=len(documents), done_before=done_before, failed=results.count_failures(documents), queue=queue
        )
        if not queue:
            return tracker.summary()
        pool, workers = create_pool(job, len(queue), options, log)
        try:
            scheduler = Scheduler(pool, results, job, workers=workers, timeout=options.timeout, log=log)
            return scheduler.run(queue, tracker, progress)
        finally:
            pool.close()


def _write_unreadable(documents: Sequence[Document], results: ResultFile, log: Callable[[str], None]) -> list[Document]:
    """Write the rows of documents that cannot be read, which needs no worker, and return the others."""
    for document in documents:
        if document.error is not None:
            results.write(failure_row(document, document.error))
            log(f"failed: {document.id}: {document.error}")
    return [document for document in documents if document.error is None]


@dataclass(frozen=True)
class _Batch:
    """Documents that a worker is processing, and when it got them."""

    documents: list[Document]
    started: float

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


class Scheduler:
    """Distribute documents to the workers of a pool and write their rows.

    Parameters
    ----------
    workers : number of workers to start.
    timeout : seconds a document may take; None for no limit.
    """

    def __init__(
        self,
        pool: WorkerPool,
        results: ResultFile,
        job: Job,
        *,
        workers: int,
        timeout: float | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._pool, self._results, self._job = pool, results, job
        self._workers, self._timeout, self._log = workers, timeout, log
        self._queue: deque[Document] = deque()
        self._tracker: ProgressTracker
        self._starting: set[int] = set()
        self._idle: set[int] = set()
        self._running: dict[int, _Batch] = {}
        self._timed_out: set[int] = set()
        self._deaths_by_document: Counter[str] = Counter()
        self._deaths = self._failed_starts = 0
        self._warned = False

    def run(self, queue: Sequence[Document], tracker: ProgressTracker, progress: Callable[[Status], None]) -> Summary:
        """Process all documents of the queue, longest first, so that no long one is left for the end."""
        self._queue = deque(sorted(queue, key=lambda document: -document.size))
        self._tracker = tracker
        tracker.start()
        for _ in range(self._workers):
            self._starting.add(self._pool.start())
        while self._queue or self._running:
            for worker in list(self._idle):
                if self._queue:
                    self._submit(worker)
            for event in self._pool.events(_EVENT_TIMEOUT):
                self._handle(event)
            self._kill_timed_out()
            self._warn_if_none_ready()
            batches = [(batch.documents, batch.seconds) for batch in self._running.values()]
            progress(tracker.status(len(self._idle) + len(self._running), batches))
        return tracker.summary(self._workers, self._deaths)

    def _submit(self, worker: int) -> None:
        """Give the next batch to an idle worker."""
        fair_share = -(-len(self._queue) // (_MIN_BATCHES * self._workers))
        head = [self._queue[i] for i in range(min(len(self._queue), fair_share, self._job.batch_size))]
        safe = list(takewhile(lambda document: document.id not in self._deaths_by_document, head))
        count = self._job.count_batch(safe) if safe else 1  # a document that may have killed a worker is sent alone
        documents = [self._queue.popleft() for _ in range(count)]
        self._idle.discard(worker)
        self._running[worker] = _Batch(documents, time.perf_counter())
        self._pool.submit(worker, documents)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._handle_ready(event)
        elif isinstance(event, Done):
            self._handle_done(event)
        else:
            self._handle_death(event)

    def _handle_ready(self, event: Ready) -> None:
        self._starting.discard(event.worker)
        self._results.pin_model(event.info["model_digest"])
        self._failed_starts = 0
        self._tracker.mark_ready()
        self._idle.add(event.worker)

    def _handle_done(self, event: Done) -> None:
        batch = self._running.pop(event.worker)
        self._tracker.add_busy(batch.seconds)
        if event.worker in self._timed_out:  # it finished while it was being killed
            self._timed_out.discard(event.worker)
        else:
            self._idle.add(event.worker)
        for document, row in zip(batch.documents, event.rows, strict=True):
            self._write(document, row)

    def _handle_death(self, event: Died) -> None:
        """Queue the lost documents again, and start another worker while there is something to do."""
        self._deaths += 1
        self._idle.discard(event.worker)
        self._failed_starts = self._failed_starts + 1 if event.worker in self._starting else 0
        self._starting.discard(event.worker)
        batch = self._running.pop(event.worker, None)
        lost = [] if batch is None else batch.documents
        self._log(f"a worker died ({event.reason}); documents to process again: {len(lost)}")
        for document in reversed(lost):
            self._requeue(document, event, alone=len(lost) == 1)
        if self._failed_starts < _MAX_FAILED_STARTS:
            if self._queue or self._running:
                self._starting.add(self._pool.start())
        elif not (self._idle or self._running or self._starting):
            raise InputError(
                f"{self._failed_starts} workers in a row died while they loaded the model ({event.reason}); is there "
                "enough memory for it? Fewer workers need less"
            )

    def _requeue(self, document: Document, event: Died, alone: bool) -> None:
        """Put a document of a dead worker back, or write it as failed if it is the likely cause."""
        self._deaths_by_document[document.id] += 1
        if alone and event.worker in self._timed_out:
            self._write(document, failure_row(document, f"it took more than {self._timeout:g} s (--timeout)"))
        elif self._deaths_by_document[document.id] >= _MAX_DEATHS:
            reason = f"{_MAX_DEATHS} workers died while processing it, the last with {event.reason}"
            self._write(document, failure_row(document, reason))
        else:
            self._queue.appendleft(document)

    def _write(self, document: Document, row: ResultRow) -> None:
        self._results.write(row)
        self._tracker.add(document, row)
        if "error" in row:
            self._log(f"failed: {document.id}: {row['error']}")

    def _kill_timed_out(self) -> None:
        if self._timeout is None:
            return
        for worker, batch in self._running.items():
            if worker not in self._timed_out and batch.seconds > self._timeout * len(batch.documents):
                self._timed_out.add(worker)
                self._pool.kill(worker)

    def _warn_if_none_ready(self) -> None:
        if not self._warned and self._tracker.waiting_seconds > _START_WARNING:
            self._warned = True
            self._log(
                f"no worker is ready after {_START_WARNING:.0f} s: the model is large, or the cluster has no room now"
            )
