"""Record every retrieval while a model generates, and give each sequence its own part afterwards.

That includes the winner of a beam search, whose tokens were predicted by different rows. Records are kept as they come,
12 bytes per hit of every row, layer and head, so tracing takes hardly any time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory import Memory


@dataclass(frozen=True)
class Attention:
    """Attention of one layer for T target tokens: source tokens `index` (T, H, K) and `weights` (T, H, K).

    The weights of a head add up to one.
    """

    index: Tensor
    weights: Tensor


@dataclass(frozen=True)
class _LayerCall:
    """One call of a layer for rows that share a memory, with targets from `start` on: arrays (R, T, H, K)."""

    layer: int
    start: int
    rows: Sequence[int]
    index: Tensor
    weights: Tensor


class AttentionTrace:
    """All retrievals of one generation, from the first target token on."""

    def __init__(self) -> None:
        self._calls: dict[int, list[_LayerCall]] = {}  # by the memory's key
        self._start = self._end = 0

    def begin_call(self, layer: int, length: int) -> None:
        """A layer is called for `length` target tokens; the first layer's call begins a step."""
        if layer == 0:
            self._start, self._end = self._end, self._end + length

    def record(
        self, layer: int, rows: Sequence[int], length: int, memory: Memory, index: Tensor, weights: Tensor
    ) -> None:
        """Record hits (N, K) of N queries: rows x target tokens x heads, heads varying fastest."""
        shape = (len(rows), length, -1, index.shape[-1])
        call = _LayerCall(layer, self._start, rows, index.reshape(shape), weights.reshape(shape))
        self._calls.setdefault(memory.key, []).append(call)

    def by_layer(self, memory: Memory, rows: Sequence[int], first_target: int) -> dict[int, Attention]:
        """Attention of each layer for tokens that these rows predicted, the first of them at `first_target`."""
        calls_by_layer: dict[int, list[_LayerCall]] = {}
        for call in self._calls.get(memory.key, ()):
            calls_by_layer.setdefault(call.layer, []).append(call)
        attention = {}
        for layer, calls in calls_by_layer.items():
            starts = [call.start for call in calls]
            index, weights = [], []
            for target, row in enumerate(rows, first_target):
                call = calls[bisect_right(starts, target) - 1]
                position = call.rows.index(row), target - call.start
                index.append(call.index[position].cpu())
                weights.append(call.weights[position].float().cpu())
            attention[layer] = Attention(torch.stack(index), torch.stack(weights))
        return attention
