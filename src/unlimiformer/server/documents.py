"""Documents on disk: one folder each, with the text, its memory and its state.

Folders are named by a random id. The name that a user gives to a document is only stored, never used as a path. What a
crash or a person damaged is reported as a failed document, and hides no other.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import InputError
from ..text.document_text import DocumentText, locations_from_json, locations_to_json
from ..utils.files import atomic_write, sync_folder
from .changes import Changes

State = Literal["waiting", "reading", "checking", "ready", "failed"]
UNFINISHED: tuple[State, ...] = ("waiting", "reading", "checking")
"""States of documents that will be ready or fail."""
_ID = re.compile("[0-9a-f]{16}")
_METADATA, _TEXT, _LOCATIONS, _MEMORY = "document.json", "text.txt", "locations.json", "memory"
_REMOVED, _UNFINISHED = ".gone", ".part"
_BYTE_ORDER_MARK = "\ufeff"
_TYPES: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "name": (str,),
    "characters": (int,),
    "created": (float, int),
    "state": (str,),
    "tokens": (int, type(None)),
    "error": (str, type(None)),
}


@dataclass(frozen=True)
class StoredDocument:
    """One document.

    `state` is "reading" while it is indexed and "checking" until its memory of an earlier process is verified; `error`
    says why it failed or has to wait.
    """

    id: str
    name: str
    characters: int
    created: float
    state: State = "waiting"
    tokens: int | None = None
    error: str | None = None


class TooManyDocumentsError(InputError):
    """The store holds as many documents as it may."""


class DocumentStore:
    """All documents of a folder, safe to use from several threads; `changes` tells when one of them changes.

    A document whose indexing was interrupted or failed in an earlier process is waiting again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = Changes()
        self._lock = threading.Lock()
        self._adding = 0
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name.endswith((_REMOVED, _UNFINISHED)):
                shutil.rmtree(path, ignore_errors=True)
        documents = [_load(path) for path in folder.iterdir() if _is_document(path)]
        self._documents = {document.id: document for document in sorted(documents, key=lambda item: item.created)}

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
        return [item for item in self.all() if item.characters == len(text) and self._has_text(item, text)]

    def add(self, name: str, content: DocumentText, most: int | None = None) -> StoredDocument:
        """Store a new document completely, or not at all if the disk refuses or there are `most` documents already.

        Line ends become a single newline, as when a file is read, so that character offsets agree.
        """
        text = content.text if content.locations else _normalized(content.text)
        _require_storable(name, text)
        document = StoredDocument(secrets.token_hex(8), name, len(text), time.time())
        with self._lock:
            if most is not None and len(self._documents) + self._adding >= most:
                raise TooManyDocumentsError(f"there are already {most} documents, which is the limit; delete one")
            self._adding += 1
        written = False
        try:
            self._write(document, text, content)
            written = True
        finally:
            with self._lock:
                self._adding -= 1
                if written:
                    self._documents[document.id] = document
        self.changes.notify()
        return document

    def _write(self, document: StoredDocument, text: str, content: DocumentText) -> None:
        """Write all files of a new document, then give its folder the name that counts."""
        unfinished = self.folder / f"{document.id}{_UNFINISHED}"
        try:
            unfinished.mkdir()
            atomic_write(unfinished / _TEXT, text)
            atomic_write(unfinished / _LOCATIONS, json.dumps(locations_to_json(content.locations)))
            atomic_write(unfinished / _METADATA, json.dumps(asdict(document)))
            unfinished.rename(self.folder / document.id)
            sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.rmtree(self.folder / document.id, ignore_errors=True)
            raise

    def _has_text(self, document: StoredDocument, text: str) -> bool:
        try:
            return self.read_text(document) == text
        except (InputError, OSError):  # one that is damaged is not the one that is looked for
            return False

    def update(self, document_id: str, **changes: Any) -> None:
        """Change fields of a document; do nothing if it was removed.

        If writing to disk fails, the change still holds in this process.
        """
        with self._lock:
            if document_id in self._documents:
                document = replace(self._documents[document_id], **changes)
                self._documents[document_id] = document
                self.changes.notify()
                atomic_write(self.folder / document_id / _METADATA, json.dumps(asdict(document)))

    def remove(self, document_id: str) -> bool:
        """Delete a document and its files; return whether it existed."""
        removed = self.folder / f"{document_id}{_REMOVED}"
        with self._lock:
            if document_id not in self._documents:
                return False
            with suppress(FileNotFoundError):  # somebody else removed it
                (self.folder / document_id).rename(removed)
            del self._documents[document_id]
        self.changes.notify()
        shutil.rmtree(removed, ignore_errors=True)
        return True

    def read_text(self, document: StoredDocument) -> str:
        """Return the whole text of a document."""
        try:
            return (self.folder / document.id / _TEXT).read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"the stored text of {document.name} is damaged; delete it and add it again") from None

    def content(self, document: StoredDocument) -> DocumentText:
        """Return the whole text of a document, with its pages."""
        try:
            rows = json.loads((self.folder / document.id / _LOCATIONS).read_text(encoding="utf-8"))
            locations = locations_from_json(rows)
        except (ValueError, TypeError, RecursionError, FileNotFoundError):  # a document of an older version has none
            locations = ()
        return DocumentText(self.read_text(document), locations)

    def memory_path(self, document: StoredDocument) -> Path:
        """Return the folder of a document's memory; it may not exist yet."""
        return self.folder / document.id / _MEMORY


def _normalized(text: str) -> str:
    return text.removeprefix(_BYTE_ORDER_MARK).replace("\r\n", "\n").replace("\r", "\n")


def _require_storable(name: str, text: str) -> None:
    if not text.replace(_BYTE_ORDER_MARK, "").strip():
        raise InputError(f"{name} is empty; expected a text")
    try:
        name.encode(), text.encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise InputError(f"the text or its name has {half!r}, half of a character; expected valid text") from None


def _is_document(folder: Path) -> bool:
    """Whether a folder holds a document, or what is left of one."""
    return bool(_ID.fullmatch(folder.name)) and any((folder / name).exists() for name in (_METADATA, _TEXT))


def _load(folder: Path) -> StoredDocument:
    """Load a document's metadata; if they are damaged, a failed document that says so."""
    try:
        document = _read_metadata(json.loads((folder / _METADATA).read_text(encoding="utf-8")))
        if document.id != folder.name:
            raise ValueError(f"it is about {document.id!r}")
    except (ValueError, TypeError, RecursionError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"its file {_METADATA} cannot be used ({reason}); delete the document and add it again"
        return StoredDocument(folder.name, folder.name, 0, folder.stat().st_mtime, "failed", error=message)
    if document.state == "ready":
        return replace(document, state="checking", error=None)
    return replace(document, state="waiting", error=None)


def _read_metadata(values: Any) -> StoredDocument:
    """Metadata from JSON; raise `TypeError` or `ValueError` for anything but what was written."""
    document = StoredDocument(**values)
    for name, types in _TYPES.items():
        if type(getattr(document, name)) not in types:
            raise TypeError(f"{name} is {getattr(document, name)!r}")
    if document.state not in get_args(State) or not math.isfinite(document.created):
        raise ValueError(f"state is {document.state!r}, created {document.created}")
    document.name.encode()  # half a character could not be sent to a client
    return document
