"""Word search (BM25): how many rare words each passage shares with a question."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import bm25s
import torch
from torch import Tensor

logging.getLogger("bm25s").setLevel(logging.ERROR)  # it logs every step


class WordSearch:
    """Searches some passages."""

    def __init__(self, passages: Sequence[str]) -> None:
        self._count = len(passages)
        tokens = bm25s.tokenize(list(passages), stopwords="en", show_progress=False)
        self._words: set[str] = set(tokens.vocab) if any(tokens.ids) else set()
        self._index = bm25s.BM25()
        if self._words:  # it cannot index nothing
            self._index.index(tokens, show_progress=False)

    def scores(self, question: str) -> Tensor:
        """Score (n,) of every passage for a question; 0 where no word is shared."""
        words = bm25s.tokenize(question, stopwords="en", show_progress=False, return_ids=False)[0]
        known = [word for word in words if word in self._words]
        if not known:
            return torch.zeros(self._count)
        return torch.from_numpy(self._index.get_scores(known)).float()
