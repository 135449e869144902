"""Shorten every document to passages of one question, as a search would: the evidence, and others that share its words.

A model that rereads passages learns from these to find the answer among them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..text.passages import overlap, text_passages
from ..text.word_search import WordSearch
from .example import Example, with_shortest_answers

_FEWEST_WORDS, _MOST_WORDS = 100, 300  # of all passages together; a window of 512 tokens holds them and a question


def shorten_to_passages(examples: Sequence[Example]) -> list[Example]:
    """Return every example with a document of its own: some passages, in their order, on lines of their own.

    How many words a document has is drawn at random, always the same way. Of several right answers the shortest is
    learned. Without known evidence the passages that share most words with the answer are taken for it.
    """
    rng = random.Random(0)
    documents: dict[str, _Passages] = {}
    shortened = []
    for example in with_shortest_answers(examples):
        passages = documents.setdefault(example.document, _Passages(example.document))
        text = passages.select(example, rng.randint(_FEWEST_WORDS, _MOST_WORDS))
        shortened.append(Example(text, example.answer, example.question, example.id))
    return shortened


class _Passages:
    """The passages of a document, and a word search in them."""

    def __init__(self, document: str) -> None:
        self._spans = text_passages(document)
        self._texts = [document[start:end].strip() for start, end in self._spans]
        self._search = WordSearch(self._texts)

    def select(self, example: Example, words: int) -> str:
        """The passages of an example: its evidence first, then the best of a word search, until there are enough."""
        by_question = self._search.scores(example.question or "").tolist()
        by_answer = self._search.scores(example.answer or "").tolist()
        has_evidence = [any(overlap(span, evidence) for evidence in example.evidence) for span in self._spans]
        order = range(len(self._spans))
        if example.evidence:
            ranking = sorted(order, key=lambda i: (not has_evidence[i], -by_question[i]))
        else:
            ranking = sorted(order, key=lambda i: -by_question[i] - by_answer[i])
        chosen: list[int] = []
        total = 0
        for index in ranking:
            length = len(self._texts[index].split())
            if chosen and total + length > (_MOST_WORDS if has_evidence[index] else words):
                break
            chosen.append(index)
            total += length
        return "\n".join(self._texts[index] for index in sorted(chosen))
