"""Read examples from a JSONL file, whose lines have this library's fields or those of a task's dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..utils.jsonl import JSON_ERRORS

SHAPES = (
    'a JSON object with "document", "answer" and optionally "question", or with "document" and "questions", a list of '
    '{"question", "answer"}; several correct answers are a list'
)


@dataclass(frozen=True)
class Example:
    """A document, a question about it, and a correct answer.

    Parameters
    ----------
    answer : None if it is not known, as in a test split.
    question : None asks for a summary.
    id : examples of one id are the same question with several correct answers; None for a single answer.
    evidence : characters of the document, start and end, that the answer is in; empty if unknown.
    """

    document: str
    answer: str | None
    question: str | None = None
    id: str | None = None
    evidence: tuple[tuple[int, int], ...] = ()


RowParser = Callable[[dict[str, Any]], Example | None]
"""Turns an object with the fields of a dataset into an example; returns None if it does not have those fields."""


def read_examples(
    path: Path,
    parse_row: RowParser = lambda row: None,
    report: Callable[[str], None] | None = None,
) -> Iterator[Example]:
    """Yield all examples of a JSONL file.

    Parameters
    ----------
    parse_row : tried first on every line; lines that it returns None for must have this library's fields.
    report : called with a message, which has the line's number, for each malformed line, which is then skipped.
        Without it a malformed line is an error.
    """
    try:
        lines = path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; expected a JSONL file") from None
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            location = f"{path}, line {number}"
            try:
                yield from [validate(example) for example in _parse_line(line, location, parse_row)]
            except InputError as error:
                message = f"{location}: {error}"
                if report is None:
                    raise InputError(message) from None
                report(message)


def validate(example: Example) -> Example:
    """Return the example; raise if its document or its question is empty."""
    if not example.document.strip():
        raise InputError("the document is empty; expected some text")
    if example.question is not None and not example.question.strip():
        raise InputError("the question is empty; expected some words, or no question at all for a summary")
    return example


def merge_answers(examples: Sequence[Example]) -> list[tuple[Example, tuple[str, ...]]]:
    """Every distinct question with all of its known answers: examples of one id, document and question are one."""
    answers: dict[tuple, tuple[Example, list[str]]] = {}
    for number, example in enumerate(examples):
        group = number if example.id is None else example.id
        key = (group, example.document, example.question, example.evidence)
        known = answers.setdefault(key, (example, []))[1]
        if example.answer is not None:
            known.append(example.answer)
    return [(example, tuple(texts)) for example, texts in answers.values()]


def with_shortest_answers(examples: Sequence[Example]) -> list[Example]:
    """Every distinct question once, with the shortest of its known answers."""
    return [
        replace(example, answer=min(answers, key=len, default=None)) for example, answers in merge_answers(examples)
    ]


def _parse_line(line: bytes, location: str, parse_row: RowParser) -> list[Example]:
    try:
        row = json.loads(line)
    except JSON_ERRORS as error:
        raise InputError(f"no JSON ({error}); expected {SHAPES}") from None
    if isinstance(row, dict) and (example := parse_row(row)) is not None:
        return [example]
    if not isinstance(row, dict) or not isinstance(row.get("document"), str):
        raise InputError(f'no text called "document"; expected {SHAPES}')
    questions: list[Any] = row["questions"] if isinstance(row.get("questions"), list) else [row]
    if not questions:
        raise InputError(f"no questions; expected {SHAPES}")
    return [
        example
        for number, fields in enumerate(questions)
        for example in _parse_question(row["document"], fields, f"{location}, {number}")
    ]


def _parse_question(document: str, fields: Any, shared_id: str) -> list[Example]:
    """Return one example for each correct answer; several answers share an id."""
    answer, question = (fields.get("answer"), fields.get("question")) if isinstance(fields, dict) else (None, None)
    answers: list[Any] = answer if isinstance(answer, list) and answer else [answer]
    if not all(isinstance(text, str) for text in answers) or not isinstance(question, str | None):
        raise InputError(f'an "answer" or "question" is missing or no text; expected {SHAPES}')
    evidence = _parse_spans(fields.get("spans", []), len(document))
    return [Example(document, text, question, shared_id if len(answers) > 1 else None, evidence) for text in answers]


def _parse_spans(spans: Any, length: int) -> tuple[tuple[int, int], ...]:
    try:
        parsed = tuple((int(start), int(end)) for start, end in spans)
    except (TypeError, ValueError, OverflowError):
        parsed = ((-1, -1),)
    if not all(0 <= start < end <= length for start, end in parsed):
        raise InputError(
            f'"spans" is {str(spans)[:80]}; expected a list of [start, end], characters of a document of {length:,}'
        )
    return parsed
