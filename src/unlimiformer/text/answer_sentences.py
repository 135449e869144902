"""Sentences of a model's answer without what does not belong into a summary."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .names import missing_names
from .sentences import is_whole, split_sentences, whole_sentences

_MARKUP = re.compile(r"\*\*|^\s*(?:[-*•#]+|\d+[.)])\s+", re.MULTILINE)
_ABOUT_THE_TEXT = re.compile(
    r"^(?:the|this) (?:text|passage|story|author|narrator|excerpt) (?:also )?\w+s that (?=\w)", re.IGNORECASE
)
_FEWEST_WORDS, _FEWEST_CHARACTERS = 4, 6
_MOST_COMMAS = 0.35  # per word
_SAME_SHARE = 0.7  # of the words of a sentence that another one has, from which they say the same


def clean_sentences(answer: str) -> list[str]:
    """The whole sentences of an answer, without lists, markup, and "The text states that".

    If it has no whole one, the one that breaks off.
    """
    text = _MARKUP.sub("", whole_sentences(answer.strip()))
    sentences = []
    for start, end in split_sentences(text):
        sentence = _ABOUT_THE_TEXT.sub("", " ".join(text[start:end].split()))
        if _is_long_enough(sentence) and not _is_list(text[start:end]):
            sentences.append(sentence[0].upper() + sentence[1:] + ("" if is_whole(sentence) else " …"))
    return sentences


def _is_long_enough(sentence: str) -> bool:
    """Whether it has some words; in a script without spaces, some characters."""
    return len(sentence.split()) >= _FEWEST_WORDS or (
        sentence.isascii() is False and len(sentence) >= _FEWEST_CHARACTERS
    )


def _is_list(sentence: str) -> bool:
    """Whether it has several lines, or a comma behind nearly every second word."""
    return "\n" in sentence.strip() or sentence.count(",") > _MOST_COMMAS * len(sentence.split())


def is_repetition(sentence: str, said: Sequence[str]) -> bool:
    """Whether a sentence says what one of some others does: that one has its names, and nearly all of its words."""
    words = _words(sentence)
    return any(
        len(words & _words(other)) >= _SAME_SHARE * len(words) and not missing_names(sentence, other) for other in said
    )


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
