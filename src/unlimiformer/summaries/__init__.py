"""Summaries of documents of any length, whose sentences know the passages that they stand on."""

from ..engines import Engine
from ..engines.question_format import QuestionFormat
from ..errors import InputError
from .base import Summarizer, SummaryRequest, summary_tokens, summary_words
from .direct import Direct
from .extractive import Extractive
from .grounded import Grounded
from .hierarchical import Hierarchical
from .leading import LeadingSentences
from .summary import ChapterSummary, Summary, SummarySentence

METHODS: dict[str, type[Summarizer]] = {
    summarizer.name: summarizer for summarizer in (Direct, Hierarchical, Grounded, Extractive, LeadingSentences)
}
_DEFAULTS = {"encoder-decoder": "direct", "decoder-only": "grounded"}


def summarizer(engine: Engine, question_format: QuestionFormat, method: str | None = None) -> Summarizer:
    """The way to summarise of this name; None for the one that is best for the kind of model."""
    name = method or _DEFAULTS[engine.kind]
    if name not in METHODS:
        raise InputError(f"the way to summarise is {name!r}; expected one of: {', '.join(METHODS)}")
    return METHODS[name](engine, question_format)


__all__ = [
    "METHODS",
    "ChapterSummary",
    "Summarizer",
    "Summary",
    "SummaryRequest",
    "SummarySentence",
    "summarizer",
    "summary_tokens",
    "summary_words",
]
