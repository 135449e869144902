"""The memories of documents that are ready; the most recently used ones stay open."""

from __future__ import annotations

import threading
from collections import OrderedDict

from ..memory.memory import Memory
from .documents import DocumentStore, StoredDocument

_MOST = 8  # memory-mapped at the same time


class OpenMemories:
    """Opens memories of documents and keeps the most recently used ones, for any thread."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents
        self._open: OrderedDict[str, Memory] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def get(self, document: StoredDocument, verify: bool = False) -> Memory:
        """The memory of a document; with `verify`, every file is compared with its checksum first."""
        if verify:  # takes long: others need not wait for it
            memory = Memory.load(self._documents.memory_path(document))
            with self._lock:
                self._keep(document, memory)
            return memory
        with self._lock:
            opened = self._open.pop(document.id, None)
            memory = opened or Memory.load(self._documents.memory_path(document), verify=False)
            self._keep(document, memory)
            return memory

    def close(self, document: StoredDocument) -> None:
        """Close a memory that was removed or replaced."""
        with self._lock:
            self._open.pop(document.id, None)

    def _keep(self, document: StoredDocument, memory: Memory) -> None:
        if self._documents.get(document.id) is not None:  # else it was deleted meanwhile
            self._open[document.id] = memory
        while len(self._open) > _MOST:
            self._open.popitem(last=False)
