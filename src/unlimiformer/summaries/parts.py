"""The parts of a document that get their own sentences in its summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..text.passages import CharacterSpan
from .outline import Chapter

MOST_SENTENCES = 4
"""That are asked for at once."""
_WORDS_PER_SENTENCE = 22
_WORDS_PER_PART = 45  # two sentences


@dataclass(frozen=True)
class Part:
    """Consecutive sections of a document, and about how many words a summary has for them.

    `title` is that of the chapter if the part is a chapter.
    """

    title: str | None
    sections: list[CharacterSpan]
    words: int

    @property
    def sentences_per_section(self) -> int:
        """How many sentences are wanted about each section: more if there are few sections."""
        return min(MOST_SENTENCES, max(1, round(self.words / _WORDS_PER_SENTENCE / len(self.sections))))


def divide_into_parts(chapters: Sequence[Chapter], words: int, by_chapter: bool) -> list[Part]:
    """The parts of a summary of so many words: one for each chapter, or about equally long ones.

    With `by_chapter`, every part has so many words.
    """
    if by_chapter:
        return [Part(chapter.title, chapter.sections, words) for chapter in chapters]
    sections = [section for chapter in chapters for section in chapter.sections]
    count = max(1, min(len(sections), words // _WORDS_PER_PART))
    cuts = [len(sections) * number // count for number in range(count + 1)]
    return [Part(None, sections[start:end], words // count) for start, end in pairwise(cuts)]
