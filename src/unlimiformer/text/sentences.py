"""Where the sentences of a text begin and end."""

from __future__ import annotations

import re

_SENTENCE = re.compile(r"\s*[^.!?。！？]*(?:[.!?。！？]+[\"'”’)]*|$)", re.S)
_ENDING = re.compile(r"[.!?。！？][\"'”’)\]]*\s*$")


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Start and end of every sentence of a text."""
    return [match.span() for match in _SENTENCE.finditer(text) if match.group().strip()]


def whole_sentences(text: str) -> str:
    """The text without a last sentence that breaks off; the text itself if it has no whole sentence."""
    spans = split_sentences(text)
    if spans and not _ENDING.search(text[slice(*spans[-1])]):
        spans = spans[:-1]
    return text[: spans[-1][1]] if spans else text
