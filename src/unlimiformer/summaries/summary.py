"""A summary: sentences that know the passages that they stand on, by chapter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..provenance import Passage, Span
from ..text.citations import Citations
from ..text.document_text import Location


@dataclass(frozen=True)
class SummarySentence:
    """A sentence of a summary, and the passages of the document that it stands on, best first."""

    text: str
    passages: tuple[Passage, ...] = ()


@dataclass(frozen=True)
class ChapterSummary:
    """What a summary says about a chapter, or about the whole document if `title` is None."""

    title: str | None
    sentences: tuple[SummarySentence, ...]

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(sentence.text for sentence in self.sentences)


@dataclass(frozen=True)
class Summary:
    """A summary of `document`; `locations` are its pages."""

    document: str
    chapters: tuple[ChapterSummary, ...]
    method: str
    locations: tuple[Location, ...] = ()

    @cached_property
    def citations(self) -> Citations:
        """How places in the document are cited."""
        return Citations(self.document, self.locations)

    @property
    def sentences(self) -> list[SummarySentence]:
        """The sentences of all chapters."""
        return [sentence for chapter in self.chapters for sentence in chapter.sentences]

    @property
    def text(self) -> str:
        """All sentences; those of a chapter with a title are a paragraph behind it."""
        return "\n\n".join(
            chapter.text if chapter.title is None else f"{chapter.title}\n{chapter.text}" for chapter in self.chapters
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the text, and every sentence with the text of its passages."""
        return {
            "summary": self.text,
            "method": self.method,
            "chapters": [
                {"title": chapter.title, "sentences": [self._sentence(sentence) for sentence in chapter.sentences]}
                for chapter in self.chapters
            ],
        }

    @property
    def spans(self) -> list[Span]:
        """The sentences as parts of `text`."""
        spans: list[Span] = []
        end = 0
        for sentence in self.sentences:
            start = self.text.index(sentence.text, end)
            end = start + len(sentence.text)
            spans.append(Span(sentence.text, start, end, list(sentence.passages)))
        return spans

    def quote(self, passage: Passage) -> str:
        """The text of a passage."""
        return self.document[passage.start : passage.end].strip()

    def _sentence(self, sentence: SummarySentence) -> dict[str, Any]:
        return {"text": sentence.text, "passages": self.citations.quote(sentence.passages)}
