"""The protocol of a store of states, and the result of a search. The only place that defines an invalid hit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Scorer = Callable[[Tensor], Tensor]
"""Scores a block of states: (n, D) to (N, n)."""


@dataclass(frozen=True)
class Hits:
    """The best stored tokens of N queries, in no particular order.

    A slot that no token fills has valid False, score -inf and index 0; it must not be taken for token 0.

    Parameters
    ----------
    index : stored tokens (N, K), int64.
    score : their scores (N, K), float32.
    valid : whether the slot is filled (N, K), bool.
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
        """Size of the stored states in bytes."""

    def search(self, queries: Tensor, k: int) -> Hits:
        """Find the k states with the largest inner products with each of `queries` (N, D)."""

    def search_by(self, scorer: Scorer, queries: int, k: int) -> Hits:
        """Find the k states that `scorer` scores highest, for scores that are not inner products with the states."""

    def mix(self, index: Tensor, weights: Tensor) -> Tensor:
        """Compute weighted sums of states: `index` and `weights` (N, K) to (N, D) in float32."""

    def blocks(self, queries: int = 1) -> Iterator[Tensor]:
        """Yield all states in order, in float32 blocks (n, D) small enough for scores (queries, n)."""
