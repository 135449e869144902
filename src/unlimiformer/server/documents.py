"""Documents on disk: a folder each, with the text, its memory, and what is known of it. Names never become paths."""

from __future__ import annotations

import json
import secrets
import shutil
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..utils.files import atomic_write

State = Literal["waiting", "reading", "ready", "failed"]
_ABOUT, _TEXT, _MEMORY = "document.json", "text.txt", "memory"
_GONE = ".gone"


@dataclass(frozen=True)
class StoredDocument:
    """One text. `error` says why it could not be read."""

    id: str
    name: str
    characters: int
    created: float
    state: State = "waiting"
    tokens: int | None = None
    error: str | None = None


class DocumentStore:
    """All documents of a folder. What was being read when a process ended, or failed, is tried again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name.endswith((_GONE, ".part")):
                shutil.rmtree(path, ignore_errors=True)
        found = [_read(path / _ABOUT) for path in folder.iterdir() if (path / _ABOUT).is_file()]
        whole = [document for document in found if document is not None]
        self._documents = {document.id: document for document in sorted(whole, key=lambda each: each.created)}
        for document in self.documents():
            if document.state in ("reading", "failed"):
                self.update(document.id, state="waiting", error=None)

    def documents(self) -> list[StoredDocument]:
        """In the order of their coming."""
        with self._lock:
            return list(self._documents.values())

    def get(self, number: str) -> StoredDocument | None:
        """The document of this id."""
        with self._lock:
            return self._documents.get(number)

    def add(self, name: str, text: str) -> StoredDocument:
        """A new document, there whole or not at all; ends of lines are one character, as readers make them."""
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        document = StoredDocument(secrets.token_hex(8), name, len(text), time.time())
        part = self.folder / f"{document.id}.part"
        part.mkdir()
        (part / _TEXT).write_bytes(text.encode("utf-8"))
        (part / _ABOUT).write_text(json.dumps(asdict(document)), encoding="utf-8")
        part.rename(self.folder / document.id)
        with self._lock:
            self._documents[document.id] = document
        return document

    def update(self, number: str, **changes: Any) -> None:
        """Notes something; of a document that was removed, nothing."""
        with self._lock:
            if number in self._documents:
                changed = self._documents[number] = replace(self._documents[number], **changes)
                atomic_write(self.folder / number / _ABOUT, json.dumps(asdict(changed)))

    def remove(self, number: str) -> bool:
        """Whether there was such a document; its files go."""
        with self._lock:
            found = self._documents.pop(number, None)
            if found is not None:
                (self.folder / number).rename(self.folder / f"{number}{_GONE}")
        if found is not None:
            shutil.rmtree(self.folder / f"{number}{_GONE}", ignore_errors=True)
        return found is not None

    def text(self, document: StoredDocument) -> str:
        """All of it."""
        return self.text_path(document).read_bytes().decode("utf-8")

    def text_path(self, document: StoredDocument) -> Path:
        """Of the text."""
        return self.folder / document.id / _TEXT

    def memory_path(self, document: StoredDocument) -> Path:
        """Of the memory."""
        return self.folder / document.id / _MEMORY


def _read(path: Path) -> StoredDocument | None:
    """None of what nobody can read: the others are served."""
    try:
        return StoredDocument(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, OSError):
        return None
