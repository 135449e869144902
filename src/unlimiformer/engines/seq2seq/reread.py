"""Answer from passages that are encoded once more, together, behind the question.

The question, as the beginning of the decoder's text, attends to the whole document. The passages that it attends to,
and that share words with it, are encoded in one window behind it, and the answer is written from that window: exactly
what the plain model does with these tokens. A question about a fact is answered from two windows, a full one and one
with half of the passages, in which less distracts the model; the surer answer is taken.
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
from ...text.questions import is_broad
from ...text.tokenization import prefix_token_ids, special_ids
from ..passage_ranking import PassageQuery, PassageRanker, RankedPassages
from .focus import MemorySlice

_CONTEXT_SHARES = (0.5, 1)  # of a window's room; a question about a fact is answered from both


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

    def read(self, memory: Memory, query: PassageQuery, attention: Tensor) -> list[MemorySlice]:
        """Encode the best passages of a query behind its question, the largest context last.

        `attention` (S,) is the attention of the query to the memory.
        """
        prefix, (_, closing) = prefix_token_ids(query.question, self._tokenizer), special_ids(self._tokenizer)
        contexts = self._select(memory, query, attention, self._window - prefix.shape[0] - closing.shape[0])
        texts = [torch.cat((prefix, memory.token_ids[rows].long(), closing)) for rows in contexts]
        device = self._indexer.device
        with torch.no_grad():
            windows = self._indexer.index_inputs(
                [TokenizedInput(ids.to(device), ids[:0].to(device), {}) for ids in texts]
            )
        before, behind = (torch.full((part.shape[0],), -1) for part in (prefix, closing))
        return [
            MemorySlice(window, memory, torch.cat((before, rows, behind)))
            for window, rows in zip(windows, contexts, strict=True)
        ]

    def _select(self, memory: Memory, query: PassageQuery, attention: Tensor, room: int) -> list[Tensor]:
        """Rows (m,) of the memory's best passages for each context, in order, at most `room`.

        Special tokens are left out.
        """
        if room < 1:
            raise InputError(
                f"the question leaves no room in a window of {self._window} tokens; expected a shorter question"
            )
        room = min(room, self._max_tokens or room)
        ranked = self._ranker.rank(memory, query, attention[memory.prefix_tokens :])
        sizes = [room] if is_broad(query.question) else [max(1, int(share * room)) for share in _CONTEXT_SHARES]
        contexts = {len(context.spans): context for context in (ranked.first(size) for size in sizes)}
        return [self._rows(memory, context)[:room] for context in contexts.values()]

    def _rows(self, memory: Memory, passages: RankedPassages) -> Tensor:
        first, chosen = memory.prefix_tokens, torch.zeros(len(memory), dtype=torch.bool)
        for start, stop in passages.spans:
            chosen[first + start : first + stop] = True
        special = torch.isin(memory.token_ids, torch.tensor(self._tokenizer.all_special_ids, dtype=torch.int32))
        return (chosen & ~special).nonzero()[:, 0]
