"""Answer from passages that are encoded once more, together, behind the question.

The question, as the beginning of the decoder's text, attends to the whole document. The passages that it attends to,
and that share words with it, are encoded in one window behind it, and the answer is written from that window: exactly
what the plain model does with these tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ...memory import Memory
from ...memory.encode import TokenizedInput
from ...memory.indexer import Indexer
from ...text.passages import PassageSplitter
from ...text.tokenization import prefix_token_ids, special_ids
from ..passage_ranking import PassageQuery, PassageRanker
from .focus import MemorySlice


class PassageReader:
    """Makes a window of the best passages of a document.

    Parameters
    ----------
    window : tokens of a window: question, passages and special tokens.
    max_tokens : tokens of passages at most; None for as many as fit the window.
    """

    def __init__(self, indexer: Indexer, tokenizer: Any, window: int, max_tokens: int | None) -> None:
        self._indexer, self._tokenizer, self._window, self._max_tokens = indexer, tokenizer, window, max_tokens
        self._ranker = PassageRanker(PassageSplitter(tokenizer))

    def query(self, memory: Memory, question: str) -> PassageQuery:
        """What is searched for a question."""
        return self._ranker.query(memory, question)

    def read(self, memory: Memory, query: PassageQuery, attention: Tensor) -> MemorySlice:
        """Encode the best passages of a query behind its question; its attention to the memory is `attention` (S,)."""
        prefix, (_, closing) = prefix_token_ids(query.question, self._tokenizer), special_ids(self._tokenizer)
        rows = self._select(memory, query, attention, self._window - prefix.shape[0] - closing.shape[0])
        ids = torch.cat((prefix, memory.token_ids[rows].long(), closing))
        source = TokenizedInput(ids.to(self._indexer.device), ids[:0].to(self._indexer.device), {})
        with torch.no_grad():
            (window,) = self._indexer.index_inputs([source])
        outside = torch.full((1,), -1)
        return MemorySlice(
            window, memory, torch.cat((outside.expand(prefix.shape[0]), rows, outside.expand(closing.shape[0])))
        )

    def _select(self, memory: Memory, query: PassageQuery, attention: Tensor, room: int) -> Tensor:
        """Rows (m,) of the memory's best passages, in order, at most `room`; special tokens are left out."""
        if room < 1:
            raise InputError(
                f"the question leaves no room in a window of {self._window} tokens; expected a shorter question"
            )
        room = min(room, self._max_tokens or room)
        first, chosen = memory.prefix_tokens, torch.zeros(len(memory), dtype=torch.bool)
        ranked = self._ranker.rank(memory, query, attention[first:])
        for start, stop in ranked.first(room).spans:
            chosen[first + start : first + stop] = True
        special = torch.isin(memory.token_ids, torch.tensor(self._tokenizer.all_special_ids, dtype=torch.int32))
        return (chosen & ~special).nonzero()[:room, 0]
