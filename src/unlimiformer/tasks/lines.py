"""Examples from the lines of a JSONL file, in our own shape or with the fields of a task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UnlimiformerError

SHAPES = (
    'a JSON object with "document", "answer" and optionally "question", or with "document" and "questions", a list of '
    '{"question", "answer"}; several right answers are a list'
)


@dataclass(frozen=True)
class Example:
    """A document, what is asked about it (None: to summarise it), and an answer; one `id` has all right answers."""

    document: str
    answer: str
    question: str | None = None
    id: str | None = None


def read_lines(
    path: Path,
    of_row: Callable[[dict[str, Any]], Example] | None = None,
    report: Callable[[str], None] | None = None,
) -> Iterator[Example]:
    """All examples of a file. A line that is wrong is an error, or goes to `report`, which has its number, and is left
    out. `of_row` makes an example of an object without a "document".
    """
    try:
        lines = path.open("rb")
    except OSError as error:
        raise UnlimiformerError(f"cannot read {path}: {error.strerror}; expected a JSONL file") from None
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield from _of_line(line, f"{path}, line {number}", of_row)
            except UnlimiformerError as error:
                if report is None:
                    raise
                report(str(error))


def _of_line(line: bytes, where: str, of_row: Callable[[dict[str, Any]], Example] | None) -> list[Example]:
    try:
        told = json.loads(line)
    except ValueError as error:  # UTF-8 as well
        raise UnlimiformerError(f"{where}: no JSON ({error}); expected {SHAPES}") from None
    if isinstance(told, dict) and "document" not in told and of_row is not None:
        try:
            return [of_row(told)]
        except UnlimiformerError as error:
            raise UnlimiformerError(f"{where}: {error}") from None
    if not isinstance(told, dict) or not isinstance(told.get("document"), str):
        raise UnlimiformerError(f'{where}: no text called "document"; expected {SHAPES}')
    asked: list[Any] = told["questions"] if isinstance(told.get("questions"), list) else [told]
    return [
        example for number, each in enumerate(asked) for example in _asked(told["document"], each, where, f"{number}")
    ]


def _asked(document: str, told: Any, where: str, number: str) -> list[Example]:
    """One example for each right answer."""
    answer, question = (told.get("answer"), told.get("question")) if isinstance(told, dict) else (None, None)
    answers: list[Any] = answer if isinstance(answer, list) and answer else [answer]
    if not all(isinstance(each, str) for each in answers) or not isinstance(question, str | None):
        raise UnlimiformerError(f'{where}: an "answer" or "question" is missing or no text; expected {SHAPES}')
    shared = f"{where}, {number}" if len(answers) > 1 else None
    return [Example(document, each, question, shared) for each in answers]
