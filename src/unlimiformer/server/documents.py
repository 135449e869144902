"""Documents on disk: one folder each, with the text, its memory and its state.

Folders are named by a random id. The name that a user gives to a document is only stored, never used as a path.
"""

from __future__ import annotations

import json
import secrets
import shutil
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..text.document_text import DocumentText, locations_from_json, locations_to_json
from ..utils.files import atomic_write

State = Literal["waiting", "reading", "ready", "failed"]
_METADATA, _TEXT, _LOCATIONS, _MEMORY = "document.json", "text.txt", "locations.json", "memory"
_REMOVED, _UNFINISHED = ".gone", ".part"


@dataclass(frozen=True)
class StoredDocument:
    """One document. `state` is "reading" while it is indexed; `error` says why it failed or has to wait."""

    id: str
    name: str
    characters: int
    created: float
    state: State = "waiting"
    tokens: int | None = None
    error: str | None = None


class DocumentStore:
    """All documents of a folder, safe to use from several threads.

    A document whose indexing was interrupted or failed in an earlier process is waiting again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name.endswith((_REMOVED, _UNFINISHED)):
                shutil.rmtree(path, ignore_errors=True)
        stored = [_load(path / _METADATA) for path in folder.iterdir() if (path / _METADATA).is_file()]
        documents = sorted((document for document in stored if document is not None), key=lambda item: item.created)
        self._documents = {document.id: _with_fresh_state(document) for document in documents}

    def all(self) -> list[StoredDocument]:
        """Return all documents, oldest first."""
        with self._lock:
            return list(self._documents.values())

    def get(self, document_id: str) -> StoredDocument | None:
        """Return the document with this id, or None."""
        with self._lock:
            return self._documents.get(document_id)

    def find_by_text(self, text: str) -> list[StoredDocument]:
        """Return the documents with exactly this text, oldest first."""
        same_size = [document for document in self.all() if document.characters == len(text)]
        return [document for document in same_size if self.read_text(document) == text]

    def add(self, name: str, content: DocumentText) -> StoredDocument:
        """Store a new document completely, or not at all if the disk refuses.

        Line ends become a single newline, as when a file is read, so that character offsets agree.
        """
        text = content.text if content.locations else _normalized(content.text)
        document = StoredDocument(secrets.token_hex(8), name, len(text), time.time())
        unfinished = self.folder / f"{document.id}{_UNFINISHED}"
        try:
            unfinished.mkdir()
            (unfinished / _TEXT).write_bytes(text.encode("utf-8"))
            (unfinished / _LOCATIONS).write_text(json.dumps(locations_to_json(content.locations)), encoding="utf-8")
            (unfinished / _METADATA).write_text(json.dumps(asdict(document)), encoding="utf-8")
            unfinished.rename(self.folder / document.id)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        with self._lock:
            self._documents[document.id] = document
        return document

    def update(self, document_id: str, **changes: Any) -> None:
        """Change fields of a document; do nothing if it was removed.

        If writing to disk fails, the change still holds in this process.
        """
        with self._lock:
            if document_id in self._documents:
                document = replace(self._documents[document_id], **changes)
                self._documents[document_id] = document
                atomic_write(self.folder / document_id / _METADATA, json.dumps(asdict(document)))

    def remove(self, document_id: str) -> bool:
        """Delete a document and its files; return whether it existed."""
        removed = self.folder / f"{document_id}{_REMOVED}"
        with self._lock:
            if self._documents.pop(document_id, None) is None:
                return False
            (self.folder / document_id).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)
        return True

    def read_text(self, document: StoredDocument) -> str:
        """Return the whole text of a document."""
        return (self.folder / document.id / _TEXT).read_bytes().decode("utf-8")

    def content(self, document: StoredDocument) -> DocumentText:
        """Return the whole text of a document, with its pages."""
        try:
            rows = json.loads((self.folder / document.id / _LOCATIONS).read_text(encoding="utf-8"))
            locations = locations_from_json(rows)
        except (ValueError, TypeError, OSError):  # a document of an older version has none
            locations = ()
        return DocumentText(self.read_text(document), locations)

    def memory_path(self, document: StoredDocument) -> Path:
        """Return the folder of a document's memory; it may not exist yet."""
        return self.folder / document.id / _MEMORY


def _normalized(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _load(path: Path) -> StoredDocument | None:
    """Load a document's metadata; None if the file is damaged, so that the other documents are still served."""
    try:
        return StoredDocument(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, OSError):
        return None


def _with_fresh_state(document: StoredDocument) -> StoredDocument:
    return document if document.state == "ready" else replace(document, state="waiting", error=None)
