"""How a place in a document is cited: its chapter, and its page or time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from textwrap import shorten
from typing import Any, Protocol

from .document_text import Location, location_at
from .headings import Section, find_sections, is_numbered

_TITLE_CHARACTERS = 60


class PassageSpan(Protocol):
    """Characters [start, end) of a text."""

    @property
    def start(self) -> int:
        """The first character."""

    @property
    def end(self) -> int:
        """The one behind the last."""


class Citations:
    """Cites places of one text, of which `locations` are the pages or times."""

    def __init__(self, text: str, locations: tuple[Location, ...] = ()) -> None:
        self.text, self._locations = text, locations

    def at(self, start: int) -> str | None:
        """The citation of a character: "Chapter 4, p. 37"; None in a text without chapters and pages."""
        index = bisect_right([chapter.start for chapter in self._chapters], start)
        title = self._chapters[index - 1].title if index else None
        parts = [None if title is None else shorten(title, _TITLE_CHARACTERS, placeholder=" …")]
        parts.append(location_at(self._locations, start))
        return ", ".join(part for part in parts if part) or None

    def quote(self, passages: Iterable[PassageSpan]) -> list[dict[str, Any]]:
        """Passages for JSON: their fields, their text, and where they are."""
        return [
            {**vars(passage), "text": self.text[passage.start : passage.end], "location": self.at(passage.start)}
            for passage in passages
        ]

    @cached_property
    def _chapters(self) -> list[Section]:
        """Headings that are numbered, if there are several, or else those that are marked as in Markdown."""
        sections = find_sections(self.text)
        numbered = [section for section in sections if is_numbered(section.title)]
        marked = [section for section in sections if self.text.startswith("#", section.start)]
        return numbered if len(numbered) > 1 else marked
