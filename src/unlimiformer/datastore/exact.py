"""The exact store: scans every state. The reference for all other stores; any device; float32, bfloat16 or int8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..errors import MemoryMismatchError
from .base import Hits, Scorer
from .kernels import native
from .kernels.choice import kernels_for
from .kernels.torch_kernels import best_rows

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
_BLOCK_SCORES = 1 << 23  # numbers in one block of scores: 32 MB of float32
_MIN_BLOCK_ROWS = 64


def encode_rows(states: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Convert states (n, D) to the dtype of a store; int8 also has scales (n,)."""
    if dtype is not torch.int8:
        return states.to(dtype), None
    states = states.float()
    scales = states.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return (states / scales[:, None]).round().to(torch.int8), scales


class ExactStore:
    """States (rows, width) in one array, filled piece by piece.

    Parameters
    ----------
    states : (S, D)
    scales : (S,), factors of int8 states; None for other dtypes.
    """

    def __init__(self, states: Tensor, scales: Tensor | None = None) -> None:
        self.states, self.scales = states, scales
        self.rows, self.width = states.shape

    @classmethod
    def empty(cls, rows: int, width: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> ExactStore:
        """Allocate a store for `rows` states, to be filled by `put`."""
        scales = torch.zeros(rows, device=device) if dtype is torch.int8 else None
        states = torch.empty((rows, width), dtype=dtype, device=device)
        native.prefer_large_pages(states)
        return cls(states.zero_(), scales)

    def put(self, start: int, states: Tensor) -> None:
        """Write states (n, D) to the rows start … start + n."""
        rows = slice(start, start + states.shape[0])
        self.states[rows], scales = encode_rows(states.to(self.states.device), self.states.dtype)
        if self.scales is not None and scales is not None:
            self.scales[rows] = scales

    @property
    def nbytes(self) -> int:
        """Size of states and scales in bytes."""
        return sum(array.nbytes for array in (self.states, self.scales) if array is not None)

    def describe(self) -> str:
        """Describe in one line how the store searches."""
        return f"exact, {str(self.states.dtype).removeprefix('torch.')}"

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what is stored on disk besides the states: a JSON description of the search, and its arrays."""
        return {"store": "exact"}, {}

    def search(self, queries: Tensor, k: int) -> Hits:
        """Find the k states with the largest inner products with each of `queries` (N, D); K is at most `rows`."""
        self._check_width(queries)
        index, score = kernels_for(self.states).scan(self.states, self.scales, queries.float(), min(k, self.rows))
        return Hits(index, score, score > float("-inf"))

    def _check_width(self, queries: Tensor) -> None:
        """Raise if the queries (N, D) are not as wide as the states: the kernels would read beyond them."""
        if queries.shape[1] != self.width:
            raise MemoryMismatchError(
                f"the states have {self.width} numbers and the queries {queries.shape[1]}; expected a memory of this "
                "model: index the text again"
            )

    def search_by(self, scorer: Scorer, queries: int, k: int) -> Hits:
        """Find the k states that `scorer` scores highest for each query, with the scores of one block at a time."""
        index, score = best_rows(
            lambda rows: scorer(self.rows_at(rows)), self.rows, self._rows_at_once(queries), min(k, self.rows)
        )
        return Hits(index, score, score > float("-inf"))

    def mix(self, index: Tensor, weights: Tensor) -> Tensor:
        """Compute weighted sums of states: `index` and `weights` (N, K) to (N, D) in float32."""
        return kernels_for(self.states).mix(self.states, self.scales, index, weights.float())

    def blocks(self, queries: int = 1) -> Iterator[Tensor]:
        """Yield all states in order, in float32 blocks (n, D) small enough for scores (queries, n)."""
        size = self._rows_at_once(queries)
        for start in range(0, self.rows, size):
            yield self.rows_at(slice(start, start + size))

    def _rows_at_once(self, queries: int) -> int:
        return max(_MIN_BLOCK_ROWS, _BLOCK_SCORES // max(self.width, queries))

    def all_states(self) -> Tensor:
        """Return all states (S, D): those in the autograd graph if they are trained, else a float32 copy."""
        return self.states if self.states.requires_grad else torch.cat(list(self.blocks()))

    def rows_at(self, at: slice | Tensor) -> Tensor:
        """Return the states at a slice or at indices, in float32."""
        states = self.states[at].float()
        return states if self.scales is None else states * self.scales[at][..., None]
