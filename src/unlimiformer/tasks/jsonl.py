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
    of_row: Callable[[dict[str, Any]], Example | None] = lambda row: None,
    report: Callable[[str], None] | None = None,
) -> Iterator[Example]:
    """All examples of a file. A line that is wrong is an error, or goes to `report`, which has its number, and is left
    out. `of_row` makes an example of an object with the fields of a task, and None of others.
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
                yield from [checked(example) for example in _of_line(line, f"{path}, line {number}", of_row)]
            except UnlimiformerError as error:
                told = UnlimiformerError(f"{path}, line {number}: {error}")
                if report is None:
                    raise told from None
                report(str(told))


def checked(example: Example) -> Example:
    """The example, if it can be asked about."""
    if not example.document.strip():
        raise UnlimiformerError("the document is empty; expected some text")
    if example.question is not None and not example.question.strip():
        raise UnlimiformerError("the question is empty; expected some words, or none at all for a summary")
    return example


def _of_line(line: bytes, where: str, of_row: Callable[[dict[str, Any]], Example | None]) -> list[Example]:
    try:
        told = json.loads(line)
    except ValueError as error:  # UTF-8 as well
        raise UnlimiformerError(f"no JSON ({error}); expected {SHAPES}") from None
    if isinstance(told, dict) and (example := of_row(told)) is not None:
        return [example]
    if not isinstance(told, dict) or not isinstance(told.get("document"), str):
        raise UnlimiformerError(f'no text called "document"; expected {SHAPES}')
    asked: list[Any] = told["questions"] if isinstance(told.get("questions"), list) else [told]
    if not asked:
        raise UnlimiformerError(f"no questions; expected {SHAPES}")
    return [
        example for number, each in enumerate(asked) for example in _asked(told["document"], each, f"{where}, {number}")
    ]


def _asked(document: str, told: Any, shared: str) -> list[Example]:
    """One example for each right answer; several have the id `shared`."""
    answer, question = (told.get("answer"), told.get("question")) if isinstance(told, dict) else (None, None)
    answers: list[Any] = answer if isinstance(answer, list) and answer else [answer]
    if not all(isinstance(each, str) for each in answers) or not isinstance(question, str | None):
        raise UnlimiformerError(f'an "answer" or "question" is missing or no text; expected {SHAPES}')
    return [Example(document, each, question, shared if len(answers) > 1 else None) for each in answers]
