"""The contract of every way to summarise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..engines import Engine
from ..engines.question_format import QuestionFormat
from ..memory import Memory
from ..memory.encode import Progress
from ..text.document_text import Location
from .summary import ChapterSummary, Summary

_TOKENS_PER_WORD = 1.28  # of a summary: 200 words fit 256 tokens


def summary_words(tokens: int) -> int:
    """Length in words of a summary that has about so many tokens."""
    return max(1, round(tokens / _TOKENS_PER_WORD))


def summary_tokens(words: int) -> int:
    """Length in tokens of a summary that has about so many words."""
    return round(words * _TOKENS_PER_WORD)


def ignore(*_: Any) -> None:
    """Do nothing with what a callback is given."""


@dataclass(frozen=True)
class SummaryRequest:
    """What is to be summarised, and how.

    Parameters
    ----------
    text : the document.
    locations : where its pages begin.
    memory : a memory of it; None if there is none.
    words : about how many words the summary has; with `by_chapter`, the summary of each chapter.
    by_chapter : summarise every chapter on its own.
    folder : keeps what the model writes, so that an interrupted summary continues; None to keep nothing.
    generation : arguments of the model's `generate`.
    progress : called with the number of steps that are done, and with their total.
    on_part : called with the sentences of each part of the document as soon as they are final.
    """

    text: str
    locations: tuple[Location, ...] = ()
    memory: Memory | None = None
    words: int = 200
    by_chapter: bool = False
    folder: Path | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    progress: Progress = ignore
    on_part: Callable[[ChapterSummary], None] = ignore


class Summarizer(ABC):
    """Summarises documents with one model."""

    name: ClassVar[str]

    def __init__(self, engine: Engine, question_format: QuestionFormat) -> None:
        self._engine, self._format = engine, question_format

    @abstractmethod
    def summarize(self, request: SummaryRequest) -> Summary:
        """A summary of a document."""

    def _join(self, parts: Sequence[ChapterSummary], request: SummaryRequest) -> Summary:
        """The summary of all parts: by chapter if that was requested, or else as one text."""
        if not request.by_chapter:
            parts = [ChapterSummary(None, tuple(sentence for part in parts for sentence in part.sentences))]
        return Summary(request.text, tuple(parts), self.name, request.locations)
