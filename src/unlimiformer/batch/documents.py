"""Find the documents of a run: the files of a folder, the lines of a JSONL file, or stored memories.

A `Document` says where a text is; the text itself is loaded by the worker that processes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..errors import InputError, UnlimiformerError
from ..memory.description import DESCRIPTION, describes_memory, is_memory
from ..memory.remote import is_url
from ..text.document_text import DocumentText
from ..text.formats import SUFFIXES
from ..utils.files import sha256 as file_digest
from ..utils.jsonl import JSON_ERRORS

_EXPECTED = (
    'a JSON object with "document" (a text), "path" (of a text file) or "memory" (written by --task index), and '
    'optionally "id" and "question" or "questions"'
)
_SOURCE_FIELDS = ("document", "path", "memory")


class DocumentChangedError(InputError):
    """A line of the input is no longer what it was when the run began."""


@dataclass(frozen=True)
class Document:
    """One document: a file, a stored memory, or a line of a JSONL file.

    Parameters
    ----------
    id : name of the document, unique within a run.
    digest : changes with the content and with the questions; empty if the content could not be read.
    size : length in bytes.
    path : file, or folder or URL of the memory.
    line : offset of the line in the file and its length, in bytes; None if the file is one document.
    memory : folder or URL of the memory, if the document is one.
    questions : questions about this document only.
    text : the content, for a worker that cannot open the file.
    error : why the document cannot be processed.
    """

    id: str
    digest: str
    size: int
    path: str
    line: tuple[int, int] | None = None
    memory: str | None = None
    questions: tuple[str, ...] = ()
    text: DocumentText | None = None
    error: str | None = None

    def source(self) -> str | Path | DocumentText:
        """Return the text, or the path of a file."""
        if self.text is not None:
            return self.text
        return Path(self.path) if self.line is None else str(_load_line(self)["document"])

    def with_text(self) -> Document:
        """Return a copy that carries its text, for a worker on another machine."""
        from ..text.sources import read_document

        if self.memory is not None or self.error is not None or self.text is not None:
            return self
        try:
            return replace(self, text=read_document(self.source()))
        except (UnlimiformerError, OSError) as error:
            return self.with_error(error)

    def with_error(self, error: Exception) -> Document:
        """Return a copy that failed. If the input changed, the digest is empty, so that the next run tries again."""
        digest = "" if isinstance(error, DocumentChangedError) else self.digest
        return replace(self, error=str(error), digest=digest)


def find_documents(source: str | Path, pattern: str | None = None) -> list[Document]:
    """Find all documents of a JSONL file or of a folder, or the one of another file.

    Of a folder, these are the files that match `pattern`, by default those of known formats; or the memories if there
    are no such files.
    """
    path = Path(source).absolute()
    if not path.exists():
        raise InputError(
            f"{path} does not exist; expected a JSONL file, a document, or a folder of them or of memories"
        )
    if path.is_dir():
        documents = list(_find_in_folder(path, pattern))
    elif path.suffix.lower() in SUFFIXES:
        documents = [_document_from_file(_printable(path.name), path)]
    else:
        documents = list(_parse_lines(path))
    if not documents:
        expected = (
            "documents (text, PDF, EPUB, DOCX, HTML, subtitles)" if pattern is None else f"files like {pattern!r}"
        )
        raise InputError(
            f"{path} has no documents; expected {expected}, or memories; --pattern chooses files"
            if path.is_dir()
            else f"{path} is empty; expected lines, each {_EXPECTED}"
        )
    _check_ids_unique(documents, path)
    return documents


def _find_in_folder(folder: Path, pattern: str | None) -> Iterator[Document]:
    try:
        paths = sorted(folder.glob("**/*" if pattern is None else pattern))
    except (ValueError, NotImplementedError) as error:
        raise InputError(f"the pattern is {pattern!r} ({error}); expected one such as **/*.txt") from None
    memories = {file.parent for file in folder.rglob(DESCRIPTION) if describes_memory(file)}
    if pattern is None:
        paths = [path for path in paths if path.suffix.lower() in SUFFIXES]
    texts = [path for path in paths if not path.is_dir() and memories.isdisjoint(path.parents)]
    for path in texts:
        yield _document_from_file(_printable(str(path.relative_to(folder))), path)
    if not texts:
        for path in sorted(memories):
            yield _document_from_memory(_printable(str(path.relative_to(folder))), str(path))


def _document_from_file(name: str, path: Path, questions: tuple[str, ...] = ()) -> Document:
    try:
        digest = _combine_digest(file_digest(path), questions)
        return Document(name, digest, path.stat().st_size, str(path), questions=questions)
    except OSError as error:
        return Document(name, "", 0, str(path), error=f"cannot read {path}: {error.strerror}")


def _document_from_memory(name: str, path: str, questions: tuple[str, ...] = ()) -> Document:
    folder = Path(path)
    try:
        if not is_memory(folder):
            return Document(name, "", 0, path, error=f"{path} is not a memory; create one with --task index")
        size = sum(file.stat().st_size for file in folder.glob("text-*.bin"))
        digest = _combine_digest(file_digest(folder / DESCRIPTION), questions)
    except OSError as error:
        return Document(name, "", 0, path, error=f"cannot read {path}: {error.strerror}")
    return Document(name, digest, size, path, memory=path, questions=questions)


def _parse_lines(path: Path) -> Iterator[Document]:
    """Parse a JSONL file; a malformed line becomes a document with an error."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            start, offset = offset, offset + len(line)
            if not line.strip():
                continue
            digest, name = _line_digest(line), f"line {number}"
            try:
                fields = _parse_object(line)
                name = _parse_id(fields, name)
                _check_encodable(fields)
                yield _document_from_fields(fields, Document(name, digest, 0, str(path), (start, len(line))))
            except InputError as error:
                yield Document(name, digest, len(line), str(path), error=f"line {number}: {error}")


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except JSON_ERRORS as error:
        raise InputError(f"not valid JSON ({error}); expected {_EXPECTED}") from None
    if not isinstance(fields, dict):
        raise InputError(f"a {type(fields).__name__}; expected {_EXPECTED}")
    return fields


def _parse_id(fields: dict[str, Any], default: str) -> str:
    name = fields.get("id", default)
    if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
        raise InputError(f'the "id" is {name!r}; expected a non-empty string or an integer')
    if not _is_encodable(str(name)):
        raise InputError(
            f'the "id" is {name!r}, which has an incomplete character (a lone surrogate); expected valid text'
        )
    return str(name)


def _check_encodable(fields: dict[str, Any]) -> None:
    """Refuse lone surrogates, which JSON can express but no UTF-8 file can hold."""
    for name in (*_SOURCE_FIELDS, "question", "questions"):
        value = fields.get(name)
        if not _is_encodable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)):
            raise InputError(
                f'"{name}" has an incomplete character (a lone surrogate, as half an emoji); expected valid text'
            )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(name: str) -> str:
    """Replace the bytes of a file name that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _document_from_fields(fields: dict[str, Any], line: Document) -> Document:
    """Build the document that a line describes; `line` has its id, its digest and its place in the file."""
    if fields.get("error"):
        raise InputError(f"the run that wrote this line reported an error: {fields['error']}")
    questions = _parse_questions(fields)
    sources = {name: fields[name] for name in _SOURCE_FIELDS if name in fields}
    if len(sources) != 1 or not all(isinstance(value, str) for value in sources.values()):
        raise InputError(f"{'no' if not sources else 'no single'} document; expected {_EXPECTED}")
    ((kind, value),) = sources.items()
    folder = Path(line.path).parent
    if kind == "memory":
        if is_url(value):  # not downloaded now: only the line tells when it changed
            return replace(line, path=value, line=None, memory=value, questions=questions)
        return _document_from_memory(line.id, str(folder / value), questions)
    if kind == "path":
        return _document_from_file(line.id, folder / value, questions)
    if not value.strip():
        raise InputError("the document is empty; expected some text")
    return replace(line, size=len(value.encode()), questions=questions)


def _parse_questions(fields: dict[str, Any]) -> tuple[str, ...]:
    """Parse "question" or "questions": texts, or objects with a "question" as in training data."""
    value = fields.get("question") if fields.get("questions") is None else fields["questions"]
    entries: Sequence[Any] = [] if value is None else value if isinstance(value, list) else [value]
    questions: list[Any] = [entry.get("question") if isinstance(entry, dict) else entry for entry in entries]
    if invalid := [question for question in questions if not isinstance(question, str) or not question.strip()]:
        raise InputError(f"a question is {invalid[0]!r}; expected a non-empty text")
    return tuple(questions)


def _load_line(document: Document) -> dict[str, Any]:
    assert document.line is not None
    start, length = document.line
    with open(document.path, "rb") as file:
        file.seek(start)
        line = file.read(length)
    if _line_digest(line) != document.digest:
        raise DocumentChangedError(f"{document.path} has changed since the run began; run the same command again")
    return json.loads(line)


def _combine_digest(digest: str, questions: tuple[str, ...]) -> str:
    """Include the questions in the digest of a file: with other questions, its row is outdated."""
    return digest if not questions else sha256(f"{digest} {json.dumps(questions)}".encode()).hexdigest()


def _line_digest(line: bytes) -> str:
    return sha256(line.strip()).hexdigest()


def _check_ids_unique(documents: Sequence[Document], path: Path) -> None:
    ids: set[str] = set()
    for document in documents:
        if document.id in ids:
            raise InputError(f"{path} has the id {document.id!r} twice; expected a different id for each document")
        ids.add(document.id)
