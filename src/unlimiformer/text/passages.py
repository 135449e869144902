"""Passages of a document: whole sentences, together a little longer than a given number of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .sentences import split_sentences

PASSAGE_TOKENS = 64
_PASSAGE_WORDS = 48  # about as long
_SENTENCE_ENDS = (".", "!", "?", "。", "！", "？", '."', '!"', '?"', ".”", "!”", "?”")

Span = tuple[int, int]
"""First token, and the one behind the last."""
CharacterSpan = tuple[int, int]
"""First character, and the one behind the last."""


def overlap(one: Span, other: Span) -> bool:
    """Whether two spans have something in common."""
    return one[0] < other[1] and other[0] < one[1]


def text_passages(text: str) -> list[CharacterSpan]:
    """Start and end of the passages of a text, in characters: whole sentences, a little more than 48 words together."""
    spans: list[CharacterSpan] = []
    start = words = 0
    for sentence_start, sentence_end in split_sentences(text):
        words += len(text[sentence_start:sentence_end].split())
        if words >= _PASSAGE_WORDS:
            spans.append((start, sentence_end))
            start, words = sentence_end, 0
    if text[start:].strip():
        spans.append((start, len(text)))
    return spans


class PassageSplitter:
    """Splits token ids of one tokenizer; without a tokenizer, all passages have the same length.

    A passage ends with the first sentence that makes it `passage_tokens` long; one of more than twice as many tokens is
    cut.
    """

    def __init__(self, tokenizer: Any, passage_tokens: int = PASSAGE_TOKENS) -> None:
        self._tokenizer, self._size = tokenizer, passage_tokens
        self._ends: dict[int, bool] = {}

    def ends_sentence(self, token: int) -> bool:
        """Whether a token ends a sentence or a line; always False without a tokenizer."""
        if self._tokenizer is None:
            return False
        if token not in self._ends:
            text = self._tokenizer.decode([token])
            self._ends[token] = "\n" in text or text.rstrip().endswith(_SENTENCE_ENDS)
        return self._ends[token]

    def split(self, ids: Tensor) -> list[Span]:
        """Spans of the passages of a document (S,), in order; together they are all of it."""
        tokens, positions = ids.unique(return_inverse=True)
        ends = torch.tensor([self.ends_sentence(token) for token in tokens.tolist()], dtype=torch.bool)[positions]
        spans: list[Span] = []
        start = 0
        for stop in (*(ends.nonzero()[:, 0] + 1).tolist(), ids.shape[0]):
            while stop - start > 2 * self._size:
                spans.append((start, start + self._size))
                start += self._size
            if stop - start >= self._size or stop == ids.shape[0] > start:
                spans.append((start, stop))
                start = stop
        return spans

    def texts(self, ids: Tensor, spans: list[Span]) -> list[str]:
        """The text of each span; empty without a tokenizer."""
        if self._tokenizer is None:
            return [""] * len(spans)
        return self._tokenizer.batch_decode([ids[start:stop].tolist() for start, stop in spans])
