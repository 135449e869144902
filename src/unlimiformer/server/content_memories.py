"""Memories of documents that come with a request, found again by their content."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from weakref import WeakValueDictionary

from ..errors import MemoryMismatchError
from ..memory.encode import Progress
from ..memory.memory import Memory
from ..model import Unlimiformer
from ..text.document_text import DocumentText, locations_to_json
from .priority_lock import CancelledError, PriorityLock

_POLL_SECONDS = 0.2


class ContentMemories:
    """The most recently used memories of a folder; a document that was sent before is not indexed again.

    Parameters
    ----------
    folder : where memories are kept.
    lock : of the model; between two windows, indexing yields to answers that wait.
    most : number of memories that are kept.
    """

    def __init__(self, folder: Path, wrapped: Unlimiformer, lock: PriorityLock, most: int = 32) -> None:
        self._folder, self._wrapped, self._model_lock, self._most = folder, wrapped, lock, most
        self._lock = threading.Lock()
        self._open: dict[str, Memory] = {}  # least recently used first
        self._being_indexed: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # while they are used

    def get(self, content: DocumentText, cancelled: threading.Event, on_progress: Callable[[int, int], None]) -> Memory:
        """The memory of a document, which is indexed if it is new; raise `CancelledError` if cancelled meanwhile."""
        name = _digest(content)
        with self._lock:
            of_content = self._being_indexed.setdefault(name, threading.Lock())
        while not of_content.acquire(timeout=_POLL_SECONDS):
            if cancelled.is_set():
                raise CancelledError
        try:
            with self._lock:
                memory = self._open.pop(name, None)
            if memory is None:
                memory = self._load(name) or self._index(name, content, cancelled, on_progress)
            with self._lock:
                self._open[name] = memory
            self._prune()
            return memory
        finally:
            of_content.release()

    def _load(self, name: str) -> Memory | None:
        """A memory of an earlier process; None if there is none that this model can use."""
        try:
            memory = Memory.load(self._folder / name)
            self._wrapped.engine.check(memory)
            return memory
        except MemoryMismatchError:
            return None

    def _index(
        self, name: str, content: DocumentText, cancelled: threading.Event, on_progress: Callable[[int, int], None]
    ) -> Memory:
        def report(done: int, total: int) -> None:
            if cancelled.is_set():
                raise CancelledError
            on_progress(done, total)
            self._model_lock.yield_to_answers()

        folder = self._folder / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        with self._model_lock.for_indexing():
            return index_or_replace(self._wrapped, content, folder, report)

    def _prune(self) -> None:
        """Remove the memories that were not used for longest."""
        with self._lock:
            while len(self._open) > self._most:
                name = next(iter(self._open))
                del self._open[name]
            kept = {*self._open, *self._being_indexed}
            others = [path for path in self._folder.iterdir() if path.is_dir() and path.name not in kept]
            others.sort(key=lambda path: path.stat().st_mtime)
            for path in others[: max(0, len(others) + len(kept) - self._most)]:
                shutil.rmtree(path, ignore_errors=True)


def index_or_replace(wrapped: Unlimiformer, content: DocumentText, folder: Path, progress: Progress) -> Memory:
    """Index a document; continue an unfinished memory, and replace one that another model or other settings made."""
    try:
        return wrapped.index(content, folder=folder, progress=progress)
    except MemoryMismatchError:
        return wrapped.index(content, folder=folder, progress=progress, overwrite=True)


def _digest(content: DocumentText) -> str:
    locations = repr(locations_to_json(content.locations)) if content.locations else ""
    return sha256(f"{content.text}\0{locations}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
