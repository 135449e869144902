"""Index documents in the background, one after the other; whatever goes wrong with one, the others become ready.

A thread does the work and another one, the supervisor, starts it again should it ever end.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..errors import MemoryMismatchError, UnlimiformerError
from ..model import Unlimiformer
from ..utils.files import may_pass, os_error_behind
from .content_memories import index_or_replace
from .documents import DocumentStore, StoredDocument
from .open_memories import OpenMemories
from .priority_lock import CancelledError, PriorityLock

_RESTART_SECONDS = 0.05  # before a thread that ended is started again


class BackgroundIndexer:
    """Verifies the memories of an earlier process, then indexes documents that wait, until it is closed.

    Parameters
    ----------
    lock : of the model; between two windows, indexing yields to answers.
    retry_seconds : pause after the file system refused a document, before it is tried again.
    """

    def __init__(
        self,
        wrapped: Unlimiformer,
        documents: DocumentStore,
        memories: OpenMemories,
        lock: PriorityLock,
        retry_seconds: float,
    ) -> None:
        self._wrapped, self._documents, self._memories, self._model_lock = wrapped, documents, memories, lock
        self._retry_seconds = retry_seconds
        self._progress: dict[str, tuple[int, int]] = {}
        self._retry_at: dict[str, float] = {}  # of documents that the file system refused, by the monotonic clock
        self._wake_up, self._closing = threading.Event(), threading.Event()
        self._current: StoredDocument | None = None
        self._thread: threading.Thread | None = None
        self._restarts = 0
        self._error: str | None = None
        self._death: BaseException | None = None
        self._supervisor = threading.Thread(target=self._supervise, name="indexing supervisor", daemon=True)
        self._supervisor.start()

    @property
    def health(self) -> dict[str, Any]:
        """Whether documents are being indexed, how often indexing had to be started again, and why the last time."""
        return {"running": self._supervisor.is_alive(), "restarts": self._restarts, "error": self._error}

    def close(self) -> None:
        """Stop; a document that is being indexed continues at the next start."""
        self._closing.set()
        self._wake_up.set()
        self._supervisor.join()

    def wake_up(self) -> None:
        """Look for waiting documents; call it after adding one."""
        self._wake_up.set()

    def progress(self, document: StoredDocument) -> tuple[int, int]:
        """Return how many windows of a document are indexed, and their total; (0, 0) before indexing begins."""
        return self._progress.get(document.id, (0, 0))

    def forget(self, document: StoredDocument) -> None:
        """Drop what is noted about a document that was removed."""
        self._memories.close(document)
        self._progress.pop(document.id, None)
        self._retry_at.pop(document.id, None)

    def _supervise(self) -> None:
        """Run the thread that indexes, and run it again whenever it ended, since all documents would wait forever."""
        while not self._closing.is_set():
            self._death = None
            try:
                self._thread = threading.Thread(target=self._run_until_death, name="indexer", daemon=True)
                self._thread.start()
                self._thread.join()
                if not self._closing.is_set():
                    self._report_death()
            except Exception as error:  # such as no more threads, of which there may be some later
                self._error = _describe(error)
            if not self._closing.is_set():
                self._restarts += 1
                self._closing.wait(_RESTART_SECONDS)

    def _report_death(self) -> None:
        """Let the document that ended the thread say why, so that it does not do so again."""
        self._error = _describe(self._death or RuntimeError("the thread that indexes was ended"))
        if self._current is not None:
            self._set_state(self._current, state="failed", error=self._error)

    def _run_until_death(self) -> None:
        try:
            self._run()
        except BaseException as error:  # also `SystemExit`, with which a thread ends in silence
            self._death = error

    def _run(self) -> None:
        while not self._closing.is_set():
            document, seconds = self._next_document()
            if document is None:
                self._wake_up.wait(seconds)
                self._wake_up.clear()
            else:
                self._current = document
                self._attempt(self._verify if document.state == "checking" else self._index, document)
            self._current = None

    def _next_document(self) -> tuple[StoredDocument | None, float | None]:
        """The document whose turn it is; without one, the seconds until one is tried again, None if there is none.

        Verifying comes first, since it takes less time. A document that the disk refused holds up no other.
        """
        open_documents = [item for item in self._documents.all() if item.state in ("checking", "waiting")]
        if not open_documents:
            return None, None
        open_documents.sort(key=lambda item: item.state != "checking")
        document = min(open_documents, key=lambda item: self._retry_at.get(item.id, 0.0))
        seconds = self._retry_at.get(document.id, 0.0) - time.monotonic()
        return (document, None) if seconds <= 0 else (None, seconds)

    def _attempt(self, step: Callable[[StoredDocument], None], document: StoredDocument) -> None:
        """Run a step for one document. What may pass is waited for; any other error is the document's own."""
        try:
            step(document)
            self._retry_at.pop(document.id, None)
        except Exception as error:
            if may_pass(error):  # such as a full disk, which may have room later
                reason = getattr(os_error_behind(error), "strerror", None) or error
                state = document.state  # what was done so far is kept
                self._set_state(document, state=state, error=f"storage is not available ({reason}); trying again")
                self._retry_at[document.id] = time.monotonic() + self._retry_seconds
            else:
                self._set_state(document, state="failed", error=_describe(error))
        if self._documents.get(document.id) is None:  # removed meanwhile; its folder may have been created again
            self.forget(document)
            shutil.rmtree(self._documents.memory_path(document).parent, ignore_errors=True)

    def _set_state(self, document: StoredDocument, **changes: Any) -> None:
        with suppress(OSError):  # a full disk: the change holds in this process, and the next one starts over anyway
            self._documents.update(document.id, **changes)

    def _verify(self, document: StoredDocument) -> None:
        """Find out whether a memory of an earlier process is whole and of this model; else it is indexed again."""
        try:
            self._wrapped.engine.check(self._memories.get(document, verify=True))
            self._set_state(document, state="ready", error=None)
        except MemoryMismatchError:
            self._memories.close(document)
            self._set_state(document, state="waiting", error=None)

    def _index(self, document: StoredDocument) -> None:
        def on_progress(done: int, total: int) -> None:
            self._progress[document.id] = (done, total)
            self._documents.changes.notify()
            if self._closing.is_set() or self._documents.get(document.id) is None:
                raise CancelledError
            self._model_lock.yield_to_answers()

        try:
            with self._model_lock.for_indexing():
                self._progress.pop(document.id, None)
                self._set_state(document, state="reading", error=None)
                if self._documents.get(document.id) is None:
                    return
                content, folder = self._documents.content(document), self._documents.memory_path(document)
                memory = index_or_replace(self._wrapped, content, folder, on_progress)
                self._memories.close(document)  # an older one, of another model
            self._set_state(document, state="ready", tokens=len(memory), error=None)
        except CancelledError:
            self._set_state(document, state="waiting")


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, UnlimiformerError) else f"{type(error).__name__}: {error}"
