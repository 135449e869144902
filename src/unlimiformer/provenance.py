"""Where the model looked: attention to source tokens, added up while it generates, told as passages of the text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import UnlimiformerError
from .memory import Memory


@dataclass(frozen=True)
class Passage:
    """Characters [start, end) of the source, and the share of all attention that fell on them."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True)
class Provenance:
    """How much attention each source token got: `weights` (S,), of sum one, over all tokens, layers and heads.

    `hits` (S,): how often each was retrieved.
    """

    weights: Tensor
    memory: Memory
    hits: Tensor

    def passages(self, count: int = 3, tokens: int = 60) -> list[Passage]:
        """The `count` stretches of `tokens` tokens that got most attention, none overlapping, best first."""
        if self.memory.offsets is None:
            raise UnlimiformerError("the memory was made from token ids and knows no text; index a text instead")
        weights = self.weights.clone()
        weights[self.memory.offsets[:, 1] == 0] = 0  # prefix and special tokens are nowhere in the text
        tokens = min(tokens, weights.shape[0])
        sums = weights.unfold(0, tokens, 1).sum(dim=1)
        found: list[Passage] = []
        for _ in range(count):
            start = int(sums.argmax())
            if sums[start] <= 0:
                break
            inside = self.memory.offsets[start : start + tokens]
            inside = inside[inside[:, 1] > 0]
            found.append(Passage(int(inside[0, 0]), int(inside[-1, 1]), float(sums[start])))
            sums[max(0, start - tokens + 1) : start + tokens] = 0
        return found


class Listener:
    """Hears every retrieval and adds up attention by memory."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}
        self._hits: dict[int, Tensor] = {}

    def hear(self, memory: Memory, index: Tensor, weights: Tensor) -> None:
        """Adds the weights (N, K) of the hits `index` (N, K)."""
        sums = self._sums.setdefault(memory.key, torch.zeros(len(memory)))
        sums.index_add_(0, index.reshape(-1).cpu(), weights.reshape(-1).float().cpu())
        seen = weights.reshape(-1).cpu() > 0
        hits = self._hits.setdefault(memory.key, torch.zeros(len(memory), dtype=torch.long))
        hits += torch.bincount(index.reshape(-1).cpu()[seen], minlength=len(memory))

    def told(self, memory: Memory) -> Provenance:
        """What was heard of one memory."""
        sums = self._sums.get(memory.key, torch.zeros(len(memory)))
        hits = self._hits.get(memory.key, torch.zeros(len(memory), dtype=torch.long))
        return Provenance(sums / sums.sum().clamp_min(1e-30), memory, hits)
