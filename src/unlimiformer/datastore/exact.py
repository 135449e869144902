"""The exact store: scans every state. The reference for all other stores; any device; float32, bfloat16 or int8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..errors import MemoryMismatchError
from .base import Hits, Scorer
from .kernels import native

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
        k = min(k, self.rows)
        self._check_width(queries)
        if not native.serves(self.states):
            return self.search_by(lambda block: queries.float() @ block.T, queries.shape[0], k)
        index, score = native.scan(self.states, self.scales, queries.float(), k)
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
        k = min(k, self.rows)
        best_score = best_index = None
        start = 0
        for block in self.blocks(queries):
            scores = torch.nan_to_num(scorer(block), nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
            index = torch.arange(start, start + block.shape[0], device=scores.device).expand_as(scores)
            if best_score is not None and best_index is not None:
                scores, index = torch.cat((best_score, scores), dim=1), torch.cat((best_index, index), dim=1)
            best_score, selected = scores.topk(min(k, scores.shape[1]), dim=1, sorted=False)
            best_index = index.gather(1, selected)
            start += block.shape[0]
        assert best_score is not None and best_index is not None
        return Hits(best_index, best_score, best_score > float("-inf"))

    def mix(self, index: Tensor, weights: Tensor) -> Tensor:
        """Compute weighted sums of states: `index` and `weights` (N, K) to (N, D) in float32."""
        if native.serves(self.states):
            return native.mix(self.states, self.scales, index, weights)
        queries_at_once = max(1, _BLOCK_SCORES // (index.shape[1] * self.width))
        parts = zip(index.split(queries_at_once), weights.float().split(queries_at_once), strict=True)
        return torch.cat([torch.einsum("nk,nkd->nd", w, self.rows_at(i)) for i, w in parts])

    def blocks(self, queries: int = 1) -> Iterator[Tensor]:
        """Yield all states in order, in float32 blocks (n, D) small enough for scores (queries, n)."""
        size = max(_MIN_BLOCK_ROWS, _BLOCK_SCORES // max(self.width, queries))
        for start in range(0, self.rows, size):
            yield self.rows_at(slice(start, start + size))

    def all_states(self) -> Tensor:
        """Return all states (S, D): those in the autograd graph if they are trained, else a float32 copy."""
        return self.states if self.states.requires_grad else torch.cat(list(self.blocks()))

    def rows_at(self, at: slice | Tensor) -> Tensor:
        """Return the states at a slice or at indices, in float32."""
        states = self.states[at].float()
        return states if self.scales is None else states * self.scales[at][..., None]
