"""Triton kernels for stores on a GPU: scan and mix read every state once, in its own type.

`scan` writes the scores of all rows and the greatest score of every group of neighbouring rows. The k best rows lie in
the k groups with the greatest scores, so that torch sorts through far fewer numbers than there are rows.
Shapes: N queries, S states, D width of a state, K hits, G groups.
"""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .torch_kernels import split_bfloat16

_ROWS, _WIDTH = 64, 64  # of the states that one step of the scan multiplies
_MIXED_ROWS, _MIXED_WIDTH = 32, 64  # of the states that one step of the mix adds up
_FEWEST_QUERIES, _MOST_QUERIES = 16, 64  # that a product of matrices takes, and that fit shared memory
_SCORES = 1 << 28  # of all queries that are scanned at once: 1 GB
_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # by numpy, which does not multiply bfloat16


@triton.jit
def _scan_kernel(
    queries,
    rest_of_queries,
    states,
    scales,
    scores,
    highest,
    rows,
    count,
    groups,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    PRODUCT: tl.constexpr,
    HAS_REST: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    """Scores (count, groups * GROUP) of one block of rows, and the greatest of each group (count, groups)."""
    block = tl.program_id(0)
    row = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    query = tl.arange(0, QUERIES)
    is_row = row < rows
    total = tl.zeros((QUERIES, ROWS), dtype=tl.float32)
    for start in range(0, WIDTH, STEP):
        column = start + tl.arange(0, STEP)
        is_column = column < WIDTH
        of_query = query[:, None] * WIDTH + column[None, :]
        query_mask = (query[:, None] < count) & is_column[None, :]
        state = tl.load(
            states + row[None, :] * WIDTH + column[:, None], mask=is_column[:, None] & is_row[None, :], other=0
        )
        state = state.to(PRODUCT)
        part = tl.load(queries + of_query, mask=query_mask, other=0).to(PRODUCT)
        total += tl.dot(part, state, input_precision="ieee")
        if HAS_REST:
            rest = tl.load(rest_of_queries + of_query, mask=query_mask, other=0).to(PRODUCT)
            total += tl.dot(rest, state, input_precision="ieee")
    if HAS_SCALES:
        total *= tl.load(scales + row, mask=is_row, other=0)[None, :]
    total = tl.where(is_row[None, :] & (total == total), total, float("-inf"))
    columns = groups * GROUP  # the last group may have fewer rows
    mask = (query[:, None] < count) & (row[None, :] < columns)
    tl.store(scores + query.to(tl.int64)[:, None] * columns + row[None, :], total, mask=mask)
    per_group = tl.max(tl.reshape(total, (QUERIES, ROWS // GROUP, GROUP)), axis=2)
    group = block * (ROWS // GROUP) + tl.arange(0, ROWS // GROUP)
    mask = (query[:, None] < count) & (group[None, :] < groups)
    tl.store(highest + query[:, None] * groups + group[None, :], per_group, mask=mask)


@triton.jit
def _mix_kernel(
    states,
    scales,
    index,
    weights,
    mixed,
    hits,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    """Some columns of the weighted sum of one query's hits."""
    query = tl.program_id(0)
    column = tl.program_id(1) * STEP + tl.arange(0, STEP)
    total = tl.zeros((STEP,), dtype=tl.float32)
    for start in range(0, hits, ROWS):
        hit = start + tl.arange(0, ROWS)
        is_hit = hit < hits
        row = tl.load(index + query * hits + hit, mask=is_hit, other=0)
        weight = tl.load(weights + query * hits + hit, mask=is_hit, other=0)
        if HAS_SCALES:
            weight *= tl.load(scales + row, mask=is_hit, other=0)
        mask = is_hit[:, None] & (column[None, :] < WIDTH)
        state = tl.load(states + row[:, None] * WIDTH + column[None, :], mask=mask, other=0).to(tl.float32)
        total += tl.sum(weight[:, None] * state, axis=0)
    tl.store(mixed + query * WIDTH + column, total, mask=column < WIDTH)


def scan(states: Tensor, scales: Tensor | None, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k best rows of `states` (S, D) for each of `queries` (N, D): row indices and scores, (N, k) each."""
    at_once = max(1, min(_SCORES // states.shape[0], _MOST_QUERIES))
    queries = queries.contiguous()
    if len(queries) <= at_once:
        return _scan(states, scales, queries, k)
    rows, scores = zip(*(_scan(states, scales, part, k) for part in queries.split(at_once)), strict=True)
    return torch.cat(rows), torch.cat(scores)


def _scan(states: Tensor, scales: Tensor | None, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    (rows, width), count = states.shape, len(queries)
    group = _group_rows(rows, k)
    groups = triton.cdiv(rows, group)
    scores = torch.empty(count, groups, group, device=states.device)
    highest = torch.empty(count, groups, device=states.device)
    is_float32 = states.dtype == torch.float32
    high, low = (queries, queries) if is_float32 else split_bfloat16(queries)
    with _on_device(states):
        _scan_kernel[(triton.cdiv(rows, _ROWS),)](
            high,
            low,
            states,
            states if scales is None else scales,
            scores,
            highest,
            rows,
            count,
            groups,
            WIDTH=width,
            QUERIES=max(_FEWEST_QUERIES, triton.next_power_of_2(count)),
            ROWS=_ROWS,
            STEP=_WIDTH,
            GROUP=group,
            PRODUCT=tl.float32 if is_float32 or _IS_INTERPRETED else tl.bfloat16,
            HAS_REST=not is_float32,
            HAS_SCALES=scales is not None,
        )
    if k >= groups or group == 1:
        score, row = scores.flatten(1).topk(k, dim=1, sorted=False)
        return row.clamp_max(rows - 1), score  # a slot that no row fills has a score of -inf
    best = highest.topk(k, dim=1, sorted=False).indices[:, :, None]  # the groups that hold the k best rows
    score, selected = scores.gather(1, best.expand(-1, -1, group)).flatten(1).topk(k, dim=1, sorted=False)
    member = (best * group + torch.arange(group, device=states.device)).flatten(1)
    return member.gather(1, selected).clamp_max(rows - 1), score


def mix(states: Tensor, scales: Tensor | None, index: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums (N, D), in float32, of states (S, D) at `index` (N, K) with `weights` (N, K)."""
    count, hits = index.shape
    mixed = torch.empty(count, states.shape[1], device=states.device)
    with _on_device(states):
        _mix_kernel[(count, triton.cdiv(states.shape[1], _MIXED_WIDTH))](
            states,
            states if scales is None else scales,
            index.contiguous(),
            weights.float().contiguous(),
            mixed,
            hits,
            WIDTH=states.shape[1],
            ROWS=_MIXED_ROWS,
            STEP=_MIXED_WIDTH,
            HAS_SCALES=scales is not None,
        )
    return mixed


def _group_rows(rows: int, k: int) -> int:
    """Rows of a group, a power of two: k groups hold about as many rows as there are groups."""
    return min(_ROWS, 1 << max(0, round(math.log2(rows / k) / 2)))


def _on_device(states: Tensor) -> Any:
    """Launch on the device that holds the states, which need not be the current one."""
    return torch.cuda.device(states.device) if states.is_cuda else nullcontext()
