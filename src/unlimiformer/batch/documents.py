"""The documents of a run: files of a folder, lines of a JSONL file, memories. Where they are, not what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..errors import UnlimiformerError
from ..memory.remote import is_url
from ..memory.storage import DESCRIPTION, describes_memory, is_memory
from ..utils.files import sha256 as file_digest

SHAPES = (
    'a JSON object with "document" (a text), "path" (of a text file) or "memory" (made by --task index), and '
    'optionally "id" and "question" or "questions"'
)


@dataclass(frozen=True)
class Document:
    """One document: a file, a folder that is a memory, or a line (its first byte and its length) of a file.

    `digest` changes with what is there; `size` is in bytes. `questions` are its own. `carried` is its text, where
    whoever works on it cannot open the file. `error` says why nothing can be done with it.
    """

    id: str
    digest: str
    size: int
    path: str
    line: tuple[int, int] | None = None
    memory: str | None = None
    questions: tuple[str, ...] = ()
    carried: str | None = None
    error: str | None = None

    def source(self) -> str | Path:
        """The text, or the path of a text file."""
        if self.carried is not None:
            return self.carried
        return Path(self.path) if self.line is None else str(_line(self)["document"])

    def with_text(self) -> Document:
        """The document with its text, to be read on another machine."""
        from ..text.sources import iter_file

        if self.memory is not None or self.error is not None or self.carried is not None:
            return self
        try:
            source = self.source()
            return replace(self, carried=source if isinstance(source, str) else "".join(iter_file(source)))
        except (UnlimiformerError, OSError) as error:
            return self.unreadable(error)

    def unreadable(self, error: Exception) -> Document:
        """The document as one that failed; what has changed meanwhile has no digest, so that the next run does it."""
        return replace(self, error=str(error), digest="" if isinstance(error, ChangedError) else self.digest)


class ChangedError(UnlimiformerError):
    """What was found when the run began is no longer there."""


def find_documents(source: str | Path, pattern: str = "**/*.txt") -> list[Document]:
    """All documents of a JSONL file, or of a folder: files whose path matches or, where there are none, memories."""
    path = Path(source).absolute()
    if not path.exists():
        raise UnlimiformerError(f"{path} does not exist; expected a JSONL file, or a folder of texts or memories")
    found = list(_of_folder(path, pattern)) if path.is_dir() else list(_of_lines(path))
    if not found:
        raise UnlimiformerError(
            f"{path} has no documents; expected files that match {pattern!r} (--pattern), or memories"
            if path.is_dir()
            else f"{path} is empty; expected lines, each {SHAPES}"
        )
    _refuse_doubles(found, path)
    return found


def _of_folder(folder: Path, pattern: str) -> Iterator[Document]:
    try:
        paths = sorted(folder.glob(pattern))
    except (ValueError, NotImplementedError) as error:
        raise UnlimiformerError(f"the pattern is {pattern!r} ({error}); expected one such as **/*.txt") from None
    memories = {each.parent for each in folder.rglob(DESCRIPTION) if describes_memory(each)}
    texts = [path for path in paths if not path.is_dir() and memories.isdisjoint(path.parents)]
    for path in texts:
        yield _of_file(_printable(str(path.relative_to(folder))), path)
    for path in sorted(memories) if not texts else ():
        yield _of_memory(_printable(str(path.relative_to(folder))), str(path))


def _of_file(name: str, path: Path, questions: tuple[str, ...] = ()) -> Document:
    try:
        return Document(name, _mixed(file_digest(path), questions), path.stat().st_size, str(path), questions=questions)
    except OSError as error:
        return Document(name, "", 0, str(path), error=f"cannot read {path}: {error.strerror}")


def _of_memory(name: str, place: str, questions: tuple[str, ...] = ()) -> Document:
    """A memory in a folder."""
    folder = Path(place)
    try:
        if not is_memory(folder):
            return Document(name, "", 0, place, error=f"{place} is not a memory; make one with --task index")
        size = sum(path.stat().st_size for path in folder.glob("text-*.bin"))
        digest = _mixed(file_digest(folder / DESCRIPTION), questions)
    except OSError as error:
        return Document(name, "", 0, place, error=f"cannot read {place}: {error.strerror}")
    return Document(name, digest, size, place, memory=place, questions=questions)


def _of_lines(path: Path) -> Iterator[Document]:
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            here, start = start, start + len(line)
            if not line.strip():
                continue
            digest, name = _digest(line), f"line {number}"
            try:
                told = _object(line)
                name = _name(told, name)
                _refuse_half_characters(told)
                yield _of_object(told, name, path, digest, (here, len(line)))
            except UnlimiformerError as error:
                yield Document(name, digest, len(line), str(path), error=f"line {number}: {error}")


def _object(line: bytes) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError) as error:  # UTF-8 as well
        raise UnlimiformerError(f"no JSON ({error}); expected {SHAPES}") from None
    if not isinstance(told, dict):
        raise UnlimiformerError(f"a {type(told).__name__}; expected {SHAPES}")
    return told


def _name(told: dict[str, Any], default: str) -> str:
    name = told.get("id", default)
    if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
        raise UnlimiformerError(f'the "id" is {name!r}; expected some text or a whole number')
    if not _is_text(str(name)):
        raise UnlimiformerError(f'the "id" is {name!r}, which has half a character; expected whole ones')
    return str(name)


def _refuse_half_characters(told: dict[str, Any]) -> None:
    """JSON can have one half of a pair; no file can."""
    for name in ("document", "path", "memory", "question", "questions"):
        if not _is_text(
            told[name] if isinstance(told.get(name), str) else json.dumps(told.get(name), ensure_ascii=False)
        ):
            raise UnlimiformerError(f'"{name}" has half a character, such as a part of an emoji; expected whole ones')


def _is_text(words: str) -> bool:
    try:
        words.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(name: str) -> str:
    """A file's name, also where it is no text."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _of_object(told: dict[str, Any], name: str, path: Path, digest: str, line: tuple[int, int]) -> Document:
    if told.get("error"):
        raise UnlimiformerError(f"there is nothing to read, its own run says: {told['error']}")
    questions = _questions(told)
    places = {key: told[key] for key in ("document", "path", "memory") if key in told}
    if len(places) != 1 or not all(isinstance(each, str) for each in places.values()):
        raise UnlimiformerError(f"{'no' if not places else 'no single'} document; expected {SHAPES}")
    ((kind, value),) = places.items()
    if kind == "memory":
        if is_url(value):  # all that is known of it is what the line says
            return Document(name, digest, 0, value, memory=value, questions=questions)
        return _of_memory(name, str(path.parent / value), questions)
    if kind == "path":
        return _of_file(name, path.parent / value, questions)
    if not value.strip():
        raise UnlimiformerError("the document is empty; expected some text")
    return Document(name, digest, len(value.encode()), str(path), line, questions=questions)


def _questions(told: dict[str, Any]) -> tuple[str, ...]:
    """Its own: texts, or objects that have one, as in data for training."""
    asked = told.get("question") if told.get("questions") is None else told["questions"]
    each: Sequence[Any] = [] if asked is None else asked if isinstance(asked, list) else [asked]
    words: list[Any] = [one.get("question") if isinstance(one, dict) else one for one in each]
    if wrong := [one for one in words if not isinstance(one, str) or not one.strip()]:
        raise UnlimiformerError(f"a question is {wrong[0]!r}; expected some words")
    return tuple(words)


def _line(document: Document) -> dict[str, Any]:
    assert document.line is not None
    start, length = document.line
    with open(document.path, "rb") as file:
        file.seek(start)
        line = file.read(length)
    if _digest(line) != document.digest:
        raise ChangedError(f"{document.path} has changed since the run began; run the same command again")
    return json.loads(line)


def _mixed(digest: str, questions: tuple[str, ...]) -> str:
    """Other questions make another document of the same text."""
    return digest if not questions else sha256(f"{digest} {json.dumps(questions)}".encode()).hexdigest()


def _digest(line: bytes) -> str:
    return sha256(line.strip()).hexdigest()


def _refuse_doubles(documents: Sequence[Document], path: Path) -> None:
    met: set[str] = set()
    for document in documents:
        if document.id in met:
            raise UnlimiformerError(f"{path} has the id {document.id!r} twice; expected another for each document")
        met.add(document.id)
