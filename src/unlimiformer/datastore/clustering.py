"""Build the cells of the IVF store: directions learned from states and real queries, k-means, and codes.

Decoder queries are distributed differently from encoder states, so both are used: directions are ordered by how much
they contribute to the scores of real queries, rows are coded by the first of them, and rows that are close there share
a cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .cells import BLOCK, INTERLEAVED, Cells
from .exact import ExactStore
from .kernels import native

_BATCH_ROWS = 1 << 15  # rows that are processed at once
_CODED, _CODED_OF_MANY, _MANY_ROWS = 256, 384, 1 << 19  # directions that rows are coded by; more of them for many rows
_CLUSTERED_DIRECTIONS = 64  # enough to tell which rows are close
_MIDDLE, _HIGHEST = 64, 127  # codes have 7 bits
_CLIPPING_QUANTILE = 0.999  # share of a direction's values within the range of the codes
_COVARIANCE_ROWS = 1 << 17
_UNIFORM_WEIGHT = 0.1  # weight of queries in random directions, against the real ones
_KMEANS_STEPS, _KMEANS_ROWS = 5, 24  # rows per cell that k-means is trained on
_MIN_VALUE = 1e-30


@dataclass(frozen=True)
class _Directions:
    """A basis in which the first directions contribute most to the scores of real queries.

    Parameters
    ----------
    for_queries : (directions, D): maps queries.
    for_states : (directions, D): maps centred states, which then have variance one in each direction.
    mean : (D,): mean of the states.
    importance : (directions,): how much each direction changes a score, for a mapped query of norm one.
    """

    for_queries: Tensor
    for_states: Tensor
    mean: Tensor
    importance: Tensor

    def project(self, states: Tensor) -> Tensor:
        """Map states (n, D) to (n, directions)."""
        return (states - self.mean) @ self.for_states.T


@dataclass(frozen=True)
class _Layout:
    """Where the rows lie: each cell takes whole blocks of slots.

    Parameters
    ----------
    sizes : (cells,): rows of each cell.
    start : (cells + 1,): first block of each cell.
    row : (slots,): the row in each slot; 0 where it is empty.
    filled : (slots,): whether the slot has a row.
    cell : (slots,): the cell of each slot.
    """

    sizes: Tensor
    start: Tensor
    row: Tensor
    filled: Tensor
    cell: Tensor


def build_cells(store: ExactStore, queries: Tensor) -> Cells:
    """Group all rows of a store into cells that suit `queries` (N, D), real queries in float32."""
    directions = _learn_directions(store, queries)
    layout = _lay_out(_assign_cells(store, directions))
    every = max(1, store.rows // _BATCH_ROWS)
    sample = directions.project(store.rows_at(torch.arange(0, store.rows, every)))
    largest = torch.stack([values.abs().quantile(_CLIPPING_QUANTILE) for values in sample.T])
    step = largest.clamp_min(_MIN_VALUE) / (_HIGHEST - _MIDDLE)
    codes, centres, spread = _encode_cells(store, directions, layout, step)
    return Cells(
        codes=codes,
        start=layout.start,
        size=layout.sizes.to(torch.int32),
        row=layout.row,
        centres=centres,
        spread=spread,
        step=step,
        projection=directions.for_queries,
    )


def _learn_directions(store: ExactStore, queries: Tensor) -> _Directions:
    every = max(1, store.rows // _COVARIANCE_ROWS)
    sample = store.rows_at(torch.arange(0, store.rows, every))
    mean = sample.mean(dim=0)
    covariance = torch.cov((sample - mean).T).double()
    variance, axes = torch.linalg.eigh(covariance)
    variance = variance.clamp_min(float(variance.max()) * 1e-6)
    root = axes @ torch.diag(variance.sqrt()) @ axes.T
    inverse_root = axes @ torch.diag(variance.rsqrt()) @ axes.T
    unit = queries.double()  # scaled below so that the scores of each query have variance one
    unit = unit / ((unit @ covariance) * unit).sum(dim=1, keepdim=True).clamp_min(_MIN_VALUE).sqrt()
    moment = unit.T @ unit / unit.shape[0] + _UNIFORM_WEIGHT * torch.eye(store.width) / covariance.trace()
    _, basis = torch.linalg.eigh(root @ moment @ root)
    basis = basis.flip(1)[:, : store.width // INTERLEAVED * INTERLEAVED]
    for_states, for_queries = (basis.T @ inverse_root).float(), (root @ basis).T.float().contiguous()
    projected = queries @ for_queries.T
    normalized = projected / projected.norm(dim=1, keepdim=True).clamp_min(_MIN_VALUE)
    return _Directions(for_queries, for_states, mean, importance=normalized.square().mean(dim=0).sqrt())


def _assign_cells(store: ExactStore, directions: _Directions) -> Tensor:
    """Return the cell of each row (S,), by k-means that is trained on a sample of the rows."""
    importance = directions.importance[:_CLUSTERED_DIRECTIONS]

    def to_points(rows: Tensor) -> Tensor:
        return directions.project(store.rows_at(rows))[:, : importance.shape[0]] * importance

    count = int(8 * math.sqrt(store.rows))
    sampled = torch.arange(0, store.rows, max(1, store.rows // (_KMEANS_ROWS * count)))
    sample = torch.cat([to_points(rows) for rows in sampled.split(_BATCH_ROWS)])
    shuffled = torch.randperm(sample.shape[0], generator=torch.Generator().manual_seed(0))
    centres = sample[shuffled[:count]].clone()
    for _ in range(_KMEANS_STEPS):
        nearest = _nearest_centre(sample, centres)
        sizes = torch.bincount(nearest, minlength=count)
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        centres = torch.where(sizes[:, None] > 0, sums / sizes.clamp_min(1)[:, None], centres)
    batches = torch.arange(store.rows).split(_BATCH_ROWS)
    return torch.cat([_nearest_centre(to_points(rows), centres) for rows in batches])


def _nearest_centre(points: Tensor, centres: Tensor) -> Tensor:
    half_norms = centres.square().sum(dim=1) / 2
    return torch.cat([(batch @ centres.T - half_norms).argmax(dim=1) for batch in points.split(2048)])


def _lay_out(cell_of_row: Tensor) -> _Layout:
    """Place the rows of each cell, without empty cells, in blocks of neighbouring slots."""
    order = cell_of_row.argsort(stable=True)
    sizes = torch.bincount(cell_of_row)
    sizes = sizes[sizes > 0]
    blocks = (sizes + BLOCK - 1) // BLOCK
    zero = torch.zeros(1, dtype=torch.int64)
    start = torch.cat((zero, blocks.cumsum(0)))
    first_row = torch.cat((zero, sizes.cumsum(0)))
    numbers = torch.arange(sizes.shape[0])
    cell = torch.repeat_interleave(numbers, sizes)  # of each row, in `order`
    slot = start[cell] * BLOCK + torch.arange(order.shape[0]) - first_row[cell]
    row = torch.zeros(int(start[-1]) * BLOCK, dtype=torch.int32)
    row[slot] = order.to(torch.int32)
    filled = torch.zeros(row.shape[0], dtype=torch.bool)
    filled[slot] = True
    return _Layout(sizes, start, row, filled, cell=torch.repeat_interleave(numbers, blocks * BLOCK))


def _encode_cells(
    store: ExactStore, directions: _Directions, layout: _Layout, step: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the codes of all slots, and the coded centres and the spreads of all cells."""
    importance, sizes = directions.importance, layout.sizes
    coded = min(importance.shape[0], _CODED if store.rows < _MANY_ROWS else _CODED_OF_MANY)
    codes = torch.empty((int(layout.start[-1]), coded // INTERLEAVED, BLOCK, INTERLEAVED), dtype=torch.uint8)
    native.prefer_large_pages(codes)
    sums, squares = torch.zeros((sizes.shape[0], importance.shape[0])), torch.zeros(sizes.shape[0])
    for at in range(0, layout.row.shape[0], _BATCH_ROWS):
        slots = slice(at, at + _BATCH_ROWS)
        points = directions.project(store.rows_at(layout.row[slots].long()))
        blocks = slice(at // BLOCK, (at + points.shape[0]) // BLOCK)
        codes[blocks] = _interleave(_to_codes(points, step)[:, :coded])
        cells, points = layout.cell[slots][layout.filled[slots]], points[layout.filled[slots]]
        sums.index_add_(0, cells, points)
        squares.index_add_(0, cells, (points * importance).square().sum(dim=1))
    centres = sums / sizes[:, None]
    spread = (squares / sizes - (centres * importance).square().sum(dim=1)).clamp_min(0).sqrt()
    padded = torch.nn.functional.pad(_to_codes(centres, step), (0, 0, 0, -sizes.shape[0] % BLOCK))
    return codes, _interleave(padded).contiguous(), spread


def _to_codes(points: Tensor, step: Tensor) -> Tensor:
    return (points / step + _MIDDLE).round().clamp(0, _HIGHEST).to(torch.uint8)


def _interleave(codes: Tensor) -> Tensor:
    """Rearrange (rows, directions) to blocks (rows / BLOCK, directions / INTERLEAVED, BLOCK, INTERLEAVED)."""
    return codes.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, INTERLEAVED)).transpose(1, 2)
