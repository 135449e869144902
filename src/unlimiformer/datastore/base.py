"""What a store of states is: the protocol and its answer. The only place that says what a miss looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Scorer = Callable[[Tensor], Tensor]
"""Scores a block of states: (n, D) to (N, n)."""


@dataclass(frozen=True)
class Hits:
    """The best stored tokens of N queries, in no order: `index`, `score` and `valid`, (N, K) each.

    A slot that nothing fills has valid False, score -inf and index 0: it is never to be read as token 0.
    """

    index: Tensor
    score: Tensor
    valid: Tensor


class Store(Protocol):
    """One vector per source token, shared by all layers and heads."""

    rows: int
    width: int

    @property
    def nbytes(self) -> int:
        """Bytes that the stored states take."""

    def search(self, queries: Tensor, k: int) -> Hits:
        """The k stored states with the largest inner products with each of `queries` (N, D)."""

    def search_by(self, scorer: Scorer, queries: int, k: int) -> Hits:
        """The k stored states that `scorer` ranks highest: for scores that no single vector can express."""

    def mix(self, index: Tensor, weights: Tensor) -> Tensor:
        """Sums of states: `index` and `weights` (N, K) to (N, D) in float32."""

    def blocks(self, queries: int = 1) -> Iterator[Tensor]:
        """All states in order, in pieces (n, D) of float32, small enough for `queries` scores of each."""
