"""Hears every retrieval while a model generates. Afterwards each sequence is told its own: also the winner of a beam
search, whose tokens were predicted by different rows.

What is heard is kept as it comes, so that listening takes no time: 12 bytes a hit, of every row, layer and head.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory.memory import Memory


@dataclass(frozen=True)
class Attention:
    """What one layer attended to for T tokens: source tokens (T, H, K) and how much, of sum one a head."""

    index: Tensor
    weights: Tensor


@dataclass(frozen=True)
class _Heard:
    """One call of a layer for rows of one memory, with targets from `start` on: index and weights (R, T, H, K)."""

    layer: int
    start: int
    rows: Sequence[int]
    index: Tensor
    weights: Tensor


class Ear:
    """Hears one call."""

    def __init__(
        self, notes: dict[int, list[_Heard]], layer: int, start: int, rows: Sequence[int], length: int
    ) -> None:
        self._notes, self._layer, self._start, self._rows, self._length = notes, layer, start, rows, length

    def hear(self, memory: Memory, index: Tensor, weights: Tensor) -> None:
        """Hits (N, K) of N queries: rows, their targets, their heads, these fastest."""
        shape = (len(self._rows), self._length, -1, index.shape[-1])
        heard = _Heard(self._layer, self._start, self._rows, index.reshape(shape), weights.reshape(shape))
        self._notes.setdefault(memory.key, []).append(heard)


class AttentionTrace:
    """Hears a whole generation, from the first target on."""

    def __init__(self) -> None:
        self._heard: dict[int, list[_Heard]] = {}
        self._start = self._end = 0

    def begins(self, layer: int, length: int) -> None:
        """A layer is called for so many targets; the first layer's call begins a step."""
        if layer == 0:
            self._start, self._end = self._end, self._end + length

    def ear(self, layer: int, rows: Sequence[int], length: int) -> Ear:
        """For a layer's call, of which these rows have one memory."""
        return Ear(self._heard, layer, self._start, rows, length)

    def followed(self, memory: Memory, rows: Sequence[int], first: int) -> dict[int, Attention]:
        """By layer, for tokens that were predicted by these rows, the first of them at target `first`."""
        by_layer: dict[int, list[_Heard]] = {}
        for heard in self._heard.get(memory.key, ()):
            by_layer.setdefault(heard.layer, []).append(heard)
        found = {}
        for layer, calls in by_layer.items():
            starts = [each.start for each in calls]
            index, weights = [], []
            for target, row in enumerate(rows, first):
                heard = calls[bisect_right(starts, target) - 1]
                place = heard.rows.index(row), target - heard.start
                index.append(heard.index[place].cpu())
                weights.append(heard.weights[place].float().cpu())
            found[layer] = Attention(torch.stack(index), torch.stack(weights))
        return found
