"""Answer from the passages that the prompt attends to.

While an answer is generated, a head may retrieve any similar name. The attention of the prompt is more reliable, so it
selects passages first, and the answer is generated from these alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...datastore import ExactStore
from ...memory import Memory
from ...provenance import Attention, Provenance

_BLOCK = 32


@dataclass(frozen=True)
class MemorySlice:
    """Some `rows` (n,) of a memory `whole`, as a `memory` of their own. A slice may be the whole memory.

    A row of -1 is none of the whole memory, such as a question's.
    """

    memory: Memory
    whole: Memory
    rows: Tensor | None = None

    @classmethod
    def from_provenance(cls, provenance: Provenance, tokens: int) -> MemorySlice:
        """At least `tokens` tokens: the blocks that got most attention, each with its neighbours."""
        whole = provenance.memory
        rows = select_passages(provenance.weights, tokens)
        memory = Memory(
            ExactStore(whole.store.rows_at(rows.to(whole.store.states.device))),
            whole.token_ids[rows],
            None,
            whole.windows,
            offsets=None if whole.offsets is None else whole.offsets[rows],
            first_window=whole.first_window,
        )
        return cls(memory, whole, rows)

    def provenance(self, layers: dict[int, Attention]) -> Provenance:
        """Attention to the slice, as provenance in the whole memory."""
        if self.rows is not None:
            layers = {layer: self._in_whole(attention) for layer, attention in layers.items()}
        return Provenance.from_layers(self.whole, layers)

    def _in_whole(self, attention: Attention) -> Attention:
        assert self.rows is not None
        index = self.rows[attention.index.long()]
        return Attention(index.clamp_min(0), attention.weights.where(index >= 0, 0.0))

    @property
    def selected(self) -> Tensor | None:
        """Rows (m,) of the whole memory that are in the slice; None for all."""
        return None if self.rows is None else self.rows[self.rows >= 0]


def select_passages(weights: Tensor, tokens: int) -> Tensor:
    """Rows (n,), in order, of the best blocks of `weights` (S,) and their neighbours, until there are `tokens`."""
    length = weights.shape[0]
    blocks = -(-length // _BLOCK)
    sums = torch.zeros(blocks).index_add_(0, torch.arange(length) // _BLOCK, weights)
    selected = torch.zeros(blocks, dtype=torch.bool)
    for block in sums.argsort(descending=True, stable=True).tolist():
        if int(selected.sum()) * _BLOCK >= tokens:
            break
        selected[max(0, block - 1) : block + 2] = True
    return selected.repeat_interleave(_BLOCK)[:length].nonzero()[:, 0]
