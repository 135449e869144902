"""Where the sentences of a text begin and end."""

from __future__ import annotations

import re

_END = re.compile(r"(?<![.!?])[.!?]+[\"'”’)\]]*(?=\s|\Z)|[。！？]+[\"'”’）]*")
TITLES = "Mr|Mrs|Ms|Mme|Mlle|Messrs|Dr|St|Prof|Rev|Hon|Capt|Col|Gen|Lt|Maj|Sgt"
"""Abbreviated titles of persons, as a regular expression."""
_ABBREVIATION = re.compile(rf"(?:\b(?:{TITLES}|Jr|Sr|Esq|vs|cf|Nos|Vol|Fig|[A-Z])|\b(?:e\.g|i\.e))\.$")
_LONGEST_ABBREVIATION = 8
_ENDING = re.compile(r"[.!?。！？][\"'”’)\]]*\s*$")


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Start and end of every sentence of a text; an abbreviated title and an initial do not end one."""
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _END.finditer(text):
        end = match.end()
        if _ABBREVIATION.search(text[max(start, end - _LONGEST_ABBREVIATION) : end]):
            continue
        if text[start:end].strip():
            spans.append((start, end))
            start = end
    if text[start:].strip():
        spans.append((start, len(text)))
    return spans


def is_whole(sentence: str) -> bool:
    """Whether a sentence does not break off."""
    return _ENDING.search(sentence) is not None


def whole_sentences(text: str) -> str:
    """The text without a last sentence that breaks off; the text itself if it has no whole sentence."""
    spans = split_sentences(text)
    if spans and not is_whole(text[slice(*spans[-1])]):
        spans = spans[:-1]
    return text[: spans[-1][1]] if spans else text
