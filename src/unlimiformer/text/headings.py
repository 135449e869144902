"""Sections of a document: where its headings are, and which of them a question names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_WORDS, _MOST_CHARACTERS = 12, 90
_NUMBERED = r"(?:chap(?:ter|\.)?|adventure|tale|book|part|act|scene|section|article|letter|volume|canto|stave|appendix)"
_NUMBER_WORDS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen"
    "|eighteen|nineteen|twenty|thirty|forty|fifty|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|last"
)
_NUMBERED_TITLE = re.compile(rf"{_NUMBERED}\s+(?:the\s+)?(?:\d+|[ivxlc]+|[a-z]|{_NUMBER_WORDS})\b", re.IGNORECASE)
_BLOCK = re.compile(r"(?:\A|(?<=\n))[^\S\n]*\S.*?(?=\n[^\S\n]*\n|\Z)", re.DOTALL)
_MARKDOWN = re.compile(r"#{1,6}\s+")
_QUOTED = re.compile(r"“([^”]+)”|\"([^\"]+)\"|«([^»]+)»|‘([^’]+)’")
_INTRODUCTION = r"(?:\b(?:[Ii]n|[Ff]rom)\s+(?:the\s+)?(?:\w+\s+)?)?"  # "In the story" before a title
_ROMAN = re.compile(r"(?=[ivxlc])(c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})")
_ROMAN_VALUES = {"c": 100, "xc": 90, "xl": 40, "l": 50, "x": 10, "ix": 9, "iv": 4, "v": 5, "i": 1}


@dataclass(frozen=True)
class Section:
    """A heading, and the characters [start, end) from the heading to the next one."""

    title: str
    start: int
    end: int


def find_sections(text: str) -> list[Section]:
    """The sections of a plain text or of Markdown; none if it has no headings.

    A heading stands between empty lines, is short, and does not end like a sentence; or it is numbered: "CHAPTER IV."
    """
    starts = [(match.group(), match.start()) for match in _BLOCK.finditer(text) if _is_heading(match.group())]
    ends = [*(start for _, start in starts[1:]), *([len(text)] if starts else [])]
    return [
        Section(" ".join(_MARKDOWN.sub("", title).split()), start, end)
        for (title, start), end in zip(starts, ends, strict=True)
    ]


def is_numbered(title: str) -> bool:
    """Whether a heading is one of a series: "CHAPTER IV", "Section 2"."""
    return _NUMBERED_TITLE.match(title) is not None


@dataclass(frozen=True)
class NamedSections:
    """The sections that a question names; none if it names none.

    Parameters
    ----------
    remainder : the question without quoted titles, for a search inside the sections.
    question : the question without a title that only introduces it ("In the story “…”:"), for the model.
    """

    sections: list[Section]
    remainder: str
    question: str


def named_sections(question: str, sections: Sequence[Section]) -> NamedSections:
    """Which sections a question names: by a title in quotation marks, by a long title, or by a number ("chapter 4")."""
    remainder = shortened = question
    named = []
    phrases = [match.group() for match in _QUOTED.finditer(question)]
    quoted = {tuple(_words(phrase)): phrase for phrase in phrases}
    asked = _words(question)
    for section in sections:
        words = tuple(_words(section.title))
        numbered = _numbered_words(section.title)
        if words in quoted:
            phrase = _INTRODUCTION + re.escape(quoted[words])
            remainder = re.sub(phrase + r"\s*[:,]?", "", remainder)
            shortened = re.sub(r"(^|:\s+)" + phrase + r"\s*[:,]\s*", r"\1", shortened)
        elif not (len(words) >= 3 and _contains(asked, words)) and not (numbered and _contains(asked, numbered)):
            continue
        named.append(section)
    return NamedSections(named, " ".join(remainder.split()) if named else question, shortened.strip() or question)


def _is_heading(block: str) -> bool:
    title = block.strip()
    if _MARKDOWN.match(title) and "\n" not in title:
        return True
    if len(title) > _MOST_CHARACTERS or len(title.split()) > _MOST_WORDS or not any(map(str.isalpha, title)):
        return False
    if is_numbered(title):
        return True
    return "\n" not in title and title[0].isupper() and title[-1].isalnum()


def _words(text: str) -> list[str]:
    """Words in lower case, Roman numerals behind "chapter" and the like as numbers."""
    words = re.findall(r"\w+", text.casefold())
    for place in range(1, len(words)):
        if re.fullmatch(_NUMBERED, words[place - 1]):
            words[place] = _arabic(words[place])
            words[place - 1] = "chapter" if words[place - 1] == "chap" else words[place - 1]
    return words


def _numbered_words(title: str) -> tuple[str, ...]:
    """ "chapter" and its number, if a title is numbered; else nothing."""
    return tuple(_words(title)[:2]) if is_numbered(title) else ()


def _arabic(word: str) -> str:
    match = _ROMAN.fullmatch(word)
    if match is None:
        return word
    hundreds, tens, ones = match.groups()
    total = 100 * len(hundreds)
    for part in (tens, ones):
        total += _ROMAN_VALUES[part] if part in _ROMAN_VALUES else sum(_ROMAN_VALUES[digit] for digit in part)
    return str(total)


def _contains(words: Sequence[str], phrase: Sequence[str]) -> bool:
    """Whether a phrase stands in some words, without a gap."""
    length = len(phrase)
    return any(tuple(words[start : start + length]) == tuple(phrase) for start in range(len(words) - length + 1))
