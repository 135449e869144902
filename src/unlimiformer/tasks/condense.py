"""Long documents made short for training: the passages that share most words with the answers, in their order.

A model that learns to answer from these learns what to look for; where to find it is what retrieval is for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from .jsonl import Example
from .tfidf import words_of

_QUESTIONS = 4  # that are kept of a document
_PASSAGE, _PASSAGES = 80, 2  # words of a passage, about; and passages for each answer


def condensed(examples: Sequence[Example]) -> list[Example]:
    """The first questions of each document, with their answers; they still share one document."""
    by_document: dict[str, list[Example]] = {}
    for example in examples:
        by_document.setdefault(example.document, []).append(example)
    return [short for document, asked in by_document.items() for short in _condensed(document, asked[:_QUESTIONS])]


def _condensed(document: str, asked: Sequence[Example]) -> list[Example]:
    passages = list(_passages(document))
    words = [set(words_of(passage)) for passage in passages]
    spread = Counter(word for each in words for word in each)
    rarity = {word: math.log(len(passages) / count) for word, count in spread.items()}
    kept: set[int] = set()
    for example in asked:
        wanted = set(words_of(f"{example.question or ''} {example.answer}"))
        shared = [sum(rarity[word] for word in sorted(each & wanted)) for each in words]
        kept |= set(sorted(range(len(passages)), key=lambda place: -shared[place])[:_PASSAGES])
    short = "\n".join(passages[place] for place in sorted(kept))
    return [Example(short, example.answer, example.question) for example in asked]


def _passages(document: str) -> Iterator[str]:
    """Lines together, or parts of long lines."""
    lines: list[str] = []
    for line in document.split("\n"):
        words = line.split()
        for start in range(0, len(words), _PASSAGE):
            lines.append(" ".join(words[start : start + _PASSAGE]))
            if sum(len(each.split()) for each in lines) >= _PASSAGE:
                yield "\n".join(lines)
                lines = []
    if lines:
        yield "\n".join(lines)
