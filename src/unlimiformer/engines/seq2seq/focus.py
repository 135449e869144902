"""The passages of a memory that a prompt looks at. An answer that is written from them alone knows no rivals elsewhere.

A question finds its passage even where the answer, looking for any name, would take another's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...datastore import ExactStore
from ...memory.memory import Memory
from ...provenance.provenance import Provenance
from ...provenance.trace import Attention

_BLOCK = 32


@dataclass(frozen=True)
class MemorySlice:
    """Some rows (n,) of a memory, as a memory of their own."""

    memory: Memory
    whole: Memory
    rows: Tensor

    @classmethod
    def looked_at(cls, looked: Provenance, tokens: int) -> MemorySlice:
        """At least so many tokens: the blocks that got most attention, each with its neighbours."""
        whole = looked.memory
        rows = passages(looked.weights, tokens)
        offsets = None if whole.offsets is None else whole.offsets[rows]
        memory = Memory(
            ExactStore(whole.store.rows_at(rows.to(whole.store.states.device))),
            whole.token_ids[rows],
            None,
            whole.windows,
            offsets=offsets,
            first_window=whole.first_window,
        )
        return cls(memory, whole, rows)

    def in_whole(self, layers: dict[int, Attention]) -> dict[int, Attention]:
        """Attention to the part, as attention to the memory that it is of."""
        return {layer: Attention(self.rows[told.index.long()], told.weights) for layer, told in layers.items()}


def passages(weights: Tensor, tokens: int) -> Tensor:
    """Places (n,), in order, of the best blocks of weights (S,) and their neighbours, until there are so many."""
    length = weights.shape[0]
    blocks = -(-length // _BLOCK)
    sums = torch.zeros(blocks).index_add_(0, torch.arange(length) // _BLOCK, weights)
    kept = torch.zeros(blocks, dtype=torch.bool)
    for block in sums.argsort(descending=True, stable=True).tolist():
        if int(kept.sum()) * _BLOCK >= tokens:
            break
        kept[max(0, block - 1) : block + 2] = True
    return kept.repeat_interleave(_BLOCK)[:length].nonzero()[:, 0]
