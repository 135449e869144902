"""How a document is divided for a summary: chapters by its headings, and sections that a model reads at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import InputError
from ..text.body import text_body
from ..text.headings import find_sections, is_numbered
from ..text.passages import CharacterSpan
from ..text.sentences import split_sentences

SECTION_TOKENS = 512
"""Of a section, where the model can read so many."""
_FEWEST_CHARACTERS = 900  # of a chapter; a shorter one, such as an entry of a table of contents, is joined to the next


@dataclass(frozen=True)
class Chapter:
    """A heading, or None, and the sections of the text behind it."""

    title: str | None
    sections: list[CharacterSpan]


def outline(text: str, tokenizer: Any, section_tokens: int) -> list[Chapter]:
    """The chapters of a document; one without a title if it has no headings.

    Sections are whole sentences, about equally long within a chapter, and have about `section_tokens` tokens at most.
    """
    chapters = []
    for title, start, end in _chapters(text):
        pieces = [
            (piece, tokens)
            for sentence in _sentences(text, start, end)
            for piece, tokens in _cut(text, sentence, tokenizer, section_tokens)
        ]
        if pieces:
            chapters.append(Chapter(title, _pack(pieces, section_tokens)))
    if not chapters:
        raise InputError("the document has no sentences; expected a text to summarise")
    return chapters


def _chapters(text: str) -> list[tuple[str | None, int, int]]:
    """Title, start and end of each chapter."""
    body_start, body_end = text_body(text)
    headings = [section for section in find_sections(text) if body_start <= section.start < body_end]
    numbered = [section for section in headings if is_numbered(section.title)]
    headings = numbered if len(numbered) > 1 else headings
    titles = [None, *(section.title for section in headings)]
    ends = [*(section.start for section in headings), body_end]
    chapters: list[tuple[str | None, int, int]] = []
    first = body_start
    for title, end in zip(titles, ends, strict=True):
        if len(text[first:end].strip()) < _FEWEST_CHARACTERS:
            continue
        chapters.append((title, first, end))
        first = end
    if first < body_end:  # the end is short: it belongs to the last chapter
        title, last_start, _ = chapters.pop() if chapters else (None, body_start, body_end)
        chapters.append((title, last_start, body_end))
    return chapters if len(chapters) > 1 else [(None, body_start, body_end)]


def _sentences(text: str, start: int, end: int) -> Iterator[CharacterSpan]:
    for first, last in split_sentences(text[start:end]):
        yield start + first, start + last


def _cut(text: str, sentence: CharacterSpan, tokenizer: Any, most_tokens: int) -> Iterator[tuple[CharacterSpan, int]]:
    """A sentence with its number of tokens; one of more than `most_tokens` is cut."""
    start, end = sentence
    count = len(tokenizer(text[start:end], add_special_tokens=False, verbose=False)["input_ids"])
    if count <= most_tokens:
        yield sentence, count
        return
    pieces = -(-count // most_tokens)
    cuts = [start + (end - start) * number // pieces for number in range(pieces + 1)]
    for piece in pairwise(cuts):
        yield piece, count // pieces


def _pack(pieces: Sequence[tuple[CharacterSpan, int]], section_tokens: int) -> list[CharacterSpan]:
    """Join consecutive pieces to sections that are about equally long."""
    total = sum(tokens for _, tokens in pieces)
    count = -(-total // section_tokens)
    sections: list[CharacterSpan] = []
    first, tokens = pieces[0][0][0], 0
    for (_, end), length in pieces:
        tokens += length
        if tokens * count >= total * (len(sections) + 1):
            sections.append((first, end))
            first = end
    return sections
