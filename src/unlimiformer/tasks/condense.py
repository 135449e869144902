"""Shorten long documents for training: keep the passages that share most words with the questions and answers.

A model learns from these what to look for; finding it in the whole document is the duty of retrieval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from .example import Example
from .tfidf import split_words

_QUESTIONS_PER_DOCUMENT = 4
_WORDS_PER_PASSAGE = 80  # approximately
_PASSAGES_PER_QUESTION = 2


def condense(examples: Sequence[Example]) -> list[Example]:
    """Return the first questions about each document, all with one short version of that document."""
    by_document: dict[str, list[Example]] = {}
    for example in examples:
        by_document.setdefault(example.document, []).append(example)
    return [
        short
        for document, about_it in by_document.items()
        for short in _condense_document(document, about_it[:_QUESTIONS_PER_DOCUMENT])
    ]


def _condense_document(document: str, examples: Sequence[Example]) -> list[Example]:
    passages = list(_split_passages(document))
    passage_words = [set(split_words(passage)) for passage in passages]
    document_frequency = Counter(word for words in passage_words for word in words)
    idf = {word: math.log(len(passages) / frequency) for word, frequency in document_frequency.items()}
    selected: set[int] = set()
    for example in examples:
        query = set(split_words(f"{example.question or ''} {example.answer}"))
        scores = [sum(idf[word] for word in sorted(words & query)) for words in passage_words]
        selected |= set(sorted(range(len(passages)), key=lambda i: -scores[i])[:_PASSAGES_PER_QUESTION])
    short = "\n".join(passages[i] for i in sorted(selected))
    return [Example(short, example.answer, example.question) for example in examples]


def _split_passages(document: str) -> Iterator[str]:
    """Yield passages of about equal length: several short lines, or a part of a long one."""
    lines: list[str] = []
    for line in document.split("\n"):
        words = line.split()
        for start in range(0, len(words), _WORDS_PER_PASSAGE):
            lines.append(" ".join(words[start : start + _WORDS_PER_PASSAGE]))
            if sum(len(part.split()) for part in lines) >= _WORDS_PER_PASSAGE:
                yield "\n".join(lines)
                lines = []
    if lines:
        yield "\n".join(lines)
