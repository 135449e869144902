"""Scan and mix stored states with torch operators, on any device. The reference for the other kernels.

Shapes: N queries, S states, D width of a state, K hits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

_BLOCK_NUMBERS = 1 << 23  # in one block of scores or of converted states: 32 MB of float32
_DEVICE_BLOCK_NUMBERS = 1 << 27  # of scores on an accelerator, where fewer and larger operations are faster
_MIN_BLOCK_ROWS = 64


def scan(states: Tensor, scales: Tensor | None, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k best rows of `states` (S, D) for each of `queries` (N, D): row indices and scores, (N, k) each."""

    rows_at_once = _rows_at_once(states, len(queries))
    if len(states) <= rows_at_once:
        return best_rows(lambda rows: score_rows(queries, states, scales), len(states), rows_at_once, k)

    def score(rows: slice) -> Tensor:
        return score_rows(queries, states[rows], None if scales is None else scales[rows])

    return best_rows(score, len(states), rows_at_once, k)


def best_rows(score: Callable[[slice], Tensor], rows: int, rows_at_once: int, k: int) -> tuple[Tensor, Tensor]:
    """Find the k rows with the best scores, (N, n) for a slice of n rows; a NaN counts as the worst."""
    index = scores = None
    for start in range(0, rows, rows_at_once):
        block = score(slice(start, min(rows, start + rows_at_once)))
        block = torch.nan_to_num(block, nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
        block_scores, block_index = block.topk(min(k, block.shape[1]), dim=1, sorted=False)
        if start:
            block_index += start
        if scores is None or index is None:
            scores, index = block_scores, block_index
            continue
        scores, index = torch.cat((scores, block_scores), dim=1), torch.cat((index, block_index), dim=1)
        scores, selected = scores.topk(min(k, scores.shape[1]), dim=1, sorted=False)
        index = index.gather(1, selected)
    assert index is not None and scores is not None, "a store has rows"
    return index, scores


def _rows_at_once(states: Tensor, queries: int) -> int:
    """How many rows of `states` (S, D) are scored at once for so many queries."""
    is_read_as_it_is = states.dtype == torch.float32 or (
        states.dtype == torch.bfloat16 and _sums_in_float32(states.device.type)
    )
    if states.device.type != "cpu" and is_read_as_it_is:
        return max(_MIN_BLOCK_ROWS, _DEVICE_BLOCK_NUMBERS // max(queries, 1))
    return max(_MIN_BLOCK_ROWS, _BLOCK_NUMBERS // max(states.shape[1], queries))


def score_rows(queries: Tensor, states: Tensor, scales: Tensor | None) -> Tensor:
    """Inner products (N, S), in float32, of float32 queries (N, D) with states (S, D) of any type.

    Where the device multiplies bfloat16 and sums in float32, states are not converted to float32: a query is split
    into two numbers of bfloat16, which together have 16 of its 24 bits.
    """
    if states.dtype == torch.float32 or not _sums_in_float32(states.device.type):
        scores = queries @ states.float().T
    else:
        parts = torch.stack(split_bfloat16(queries)).flatten(0, 1)
        products = multiply_bfloat16(parts, states.bfloat16())
        scores = products[: len(queries)] + products[len(queries) :]
    return scores if scales is None else scores * scales


def split_bfloat16(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of bfloat16 whose sum is nearly a float32 tensor."""
    high = numbers.bfloat16()
    return high, (numbers - high).bfloat16()


def multiply_bfloat16(queries: Tensor, states: Tensor) -> Tensor:
    """Inner products (N, S), summed and returned in float32, of queries (N, D) with states (S, D) of bfloat16."""
    return torch.mm(queries, states.T, out_dtype=torch.float32)


@cache
def _sums_in_float32(device: str) -> bool:
    """Whether this kind of device has `multiply_bfloat16`; today CUDA and ROCm have."""
    probe = torch.ones(16, 16, device=device, dtype=torch.bfloat16)
    try:
        return multiply_bfloat16(probe, probe).dtype == torch.float32
    except (RuntimeError, TypeError):  # TypeError: torch before 2.8
        return False


def mix(states: Tensor, scales: Tensor | None, index: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums (N, D), in float32, of states (S, D) at `index` (N, K) with `weights` (N, K)."""
    queries_at_once = max(1, _BLOCK_NUMBERS // (index.shape[1] * states.shape[1]))
    if len(index) > queries_at_once:
        parts = zip(index.split(queries_at_once), weights.split(queries_at_once), strict=True)
        return torch.cat([mix(states, scales, i, w) for i, w in parts])
    weights = weights if scales is None else weights * scales[index]
    return torch.einsum("nk,nkd->nd", weights, states[index].float())
