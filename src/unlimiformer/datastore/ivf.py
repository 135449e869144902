"""The cell store: finds nearly all that the exact store finds, by looking into a part of the rows.

Decoder queries do not look like encoder states. So the geometry comes from both: directions are ordered by how much of
the scores of real queries they carry, rows are coded by the first of them, and neighbours there share a cell. A query
looks into the cells whose best row may be among its k best, judged by codes, and scores what it finds by the states
themselves. How far it looks is measured when the store is built: far enough for the recall that was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UnlimiformerError
from .base import Hits
from .exact import ExactStore
from .kernels import native
from .recall import TOGETHER, RecallStats, exact_hits, held_out, measure

LEAST_ROWS = 16384
"""Fewer rows are scanned faster than they are looked up."""
_BLOCK, _FOURS = 8, 4  # how codes lie: see kernels/ivf.c
_ROWS = 1 << 15  # rows worked on at a time
_DIRECTIONS, _MORE, _MANY = 256, 384, 1 << 19  # directions that rows are coded by, and more of them for many rows
_MIDDLE, _HIGHEST = 64, 127  # codes have 7 bits
_CLIPPED = 0.999  # of a direction's values lie within the codes' range
_REACHES = (1.5, 2.0, 2.5, 2.75, 3.0, 3.25, 3.5, 4.0, 5.0)
_CANDIDATES = (1.25, 1.5, 2.0, 3.0, 4.0)  # rows scored exactly, for each one wanted
_SAMPLE = 1 << 17
_UNSEEN = 0.1  # what queries that look anywhere count against those that were seen


class IVFStore(ExactStore):
    """An exact store with cells beside it: arrays named as in kernels/ivf.c, a projection of queries, and how far to look."""

    def __init__(
        self,
        states: Tensor,
        scales: Tensor | None,
        cells: dict[str, Tensor],
        reach: float,
        candidates: float,
        measured: RecallStats,
    ) -> None:
        super().__init__(states, scales)
        self.cells, self.reach, self.candidates, self.measured = cells, reach, candidates, measured
        self._codes_spread = float((1 / cells["step"]).median())  # directions have variance one

    @property
    def nbytes(self) -> int:
        """Bytes of states, scales, codes and the rest."""
        return super().nbytes + sum(array.nbytes for array in self.cells.values())

    def describe(self) -> str:
        """How it searches, in words."""
        return f"{self.cells['size'].shape[0]:,} cells beside {super().describe()}: {self.measured}"

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What is kept on disk beside the states."""
        told = {
            "store": "cells",
            "reach": self.reach,
            "candidates": self.candidates,
            "measured": self.measured.state_dict(),
        }
        return told, {f"cell_{name}": array for name, array in self.cells.items()}

    @classmethod
    def from_state(
        cls, states: Tensor, scales: Tensor | None, told: dict[str, Any], arrays: dict[str, Tensor]
    ) -> IVFStore:
        """From what is kept on disk."""
        cells = {name.removeprefix("cell_"): array for name, array in arrays.items() if name.startswith("cell_")}
        start, places = cells["start"], cells["codes"].shape[0] * _BLOCK
        sound = bool((start.diff() >= 0).all()) and int(start[-1]) * _BLOCK == places == cells["row"].shape[0]
        if not sound or int(cells["row"].max()) >= states.shape[0] or int(cells["row"].min()) < 0:
            raise UnlimiformerError("the memory's cells do not fit its states; index the text again with --store cells")
        return cls(states, scales, cells, told["reach"], told["candidates"], RecallStats(**told["measured"]))

    def search(self, queries: Tensor, k: int) -> Hits:
        """The k states with the largest inner products with each of `queries` (N, D), nearly."""
        if not native.serves(self.states) or 4 * k > self.rows:
            return super().search(queries, k)
        index, score, _ = self._look(queries.float(), k)
        return Hits(index, score, score > float("-inf"))

    def looked_at(self, queries: Tensor, k: int) -> float:
        """The mean share of the rows whose codes are read."""
        return float(self._look(queries.float(), k)[2].float().mean()) / self.rows

    def _look(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        projected = queries @ self.cells["projection"].T
        reach = self.reach * projected.norm(dim=1)
        candidates = min(self.rows, int(k * self.candidates))
        return native.search_ivf(
            self.cells,
            self.states,
            self.scales,
            queries,
            projected * self.cells["step"],
            reach,
            self._codes_spread,
            candidates,
            k,
        )


def build_ivf(store: ExactStore, queries: Tensor, k: int, recall: float) -> ExactStore:
    """A cell store of the same states that has `recall` of the attention mass on real queries (M, D).

    The store itself is given back where cells cannot serve: few rows, no compiled loops, the recall out of reach, or a
    scan of all rows that takes no longer.
    """
    k = min(k, store.rows)
    if not native.serves(store.states) or store.rows < max(LEAST_ROWS, 8 * k):
        return store
    best = fastest_ivf(store, queries, k, recall)
    _, asked = held_out(queries[: 16 * TOGETHER])
    plain = measure(store, asked, exact_hits(store, asked, k), k, 1.0)
    return best if best is not None and best.measured.milliseconds < plain.milliseconds else store


def fastest_ivf(store: ExactStore, queries: Tensor, k: int, recall: float) -> IVFStore | None:
    """Cells, with the fastest way of looking into them that has the recall; None if none has."""
    learnt, asked = held_out(queries)
    projection, encode = _geometry(store, learnt)
    cells = _cells(store, encode, weights=_importance(learnt, projection))
    cells["projection"] = projection
    exact = exact_hits(store, asked, k)
    best = None
    for candidates in _CANDIDATES:
        for reach in _REACHES:
            made = IVFStore(store.states, store.scales, cells, reach, candidates, RecallStats(0, 0, 0, k))
            made.measured = measure(made, asked, exact, k, made.looked_at(asked[: 8 * TOGETHER], k))
            if made.measured.mass_recall >= recall:
                if best is None or made.measured.milliseconds < best.measured.milliseconds:
                    best = made
                break  # looking farther only takes longer
    return best


def _geometry(store: ExactStore, queries: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Directions in order of what they carry of the queries' scores: a map for queries (r, D), and one for states.

    States come out centred, with variance one in each direction.
    """
    step = max(1, store.rows // _SAMPLE)
    sample = store.rows_at(torch.arange(0, store.rows, step))
    mean = sample.mean(dim=0)
    covariance = torch.cov((sample - mean).T).double()
    variance, axes = torch.linalg.eigh(covariance)
    variance = variance.clamp_min(float(variance.max()) * 1e-6)
    root = axes @ torch.diag(variance.sqrt()) @ axes.T
    inverse = axes @ torch.diag(variance.rsqrt()) @ axes.T
    seen = queries.double()
    seen = seen / ((seen @ covariance) * seen).sum(dim=1, keepdim=True).clamp_min(1e-30).sqrt()
    asked = seen.T @ seen / seen.shape[0] + _UNSEEN * torch.eye(store.width) / covariance.trace()
    _, directions = torch.linalg.eigh(root @ asked @ root)
    directions = directions.flip(1)[:, : store.width // _FOURS * _FOURS]
    for_states, for_queries = (directions.T @ inverse).float(), (root @ directions).T.float().contiguous()
    return for_queries, lambda states: (states - mean) @ for_states.T


def _importance(queries: Tensor, projection: Tensor) -> Tensor:
    """How much each direction moves a score, for a query of spread one: (r,)."""
    seen = queries @ projection.T
    return (seen / seen.norm(dim=1, keepdim=True).clamp_min(1e-30)).square().mean(dim=0).sqrt()


def _cells(store: ExactStore, encode: Callable[[Tensor], Tensor], weights: Tensor) -> dict[str, Tensor]:
    near = min(weights.shape[0], 64)  # the first directions tell neighbours well enough
    cell = _assign(store, lambda rows: encode(rows)[:, :near] * weights[:near])
    order = cell.argsort(stable=True)
    sizes = torch.bincount(cell)
    sizes = sizes[sizes > 0]
    blocks = (sizes + _BLOCK - 1) // _BLOCK
    start = torch.cat((torch.zeros(1, dtype=torch.int64), blocks.cumsum(0)))
    first = torch.cat((torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)))
    number = torch.repeat_interleave(torch.arange(sizes.shape[0]), sizes)
    place = start[number] * _BLOCK + torch.arange(store.rows) - first[number]
    row = torch.zeros(int(start[-1]) * _BLOCK, dtype=torch.int32)
    row[place] = order.to(torch.int32)
    dims, coded_dims = weights.shape[0], min(weights.shape[0], _DIRECTIONS if store.rows < _MANY else _MORE)
    sample = encode(store.rows_at(torch.arange(0, store.rows, max(1, store.rows // _ROWS))))
    step = torch.stack([direction.abs().quantile(_CLIPPED) for direction in sample.T]).clamp_min(1e-30) / (
        _HIGHEST - _MIDDLE
    )
    codes = torch.empty((int(start[-1]), coded_dims // _FOURS, _BLOCK, _FOURS), dtype=torch.uint8)
    native.prefer_large_pages(codes)
    sums, squares = torch.zeros((sizes.shape[0], dims)), torch.zeros(sizes.shape[0])
    cell_of_place = torch.repeat_interleave(torch.arange(sizes.shape[0]), blocks * _BLOCK)
    filled = torch.zeros(row.shape[0], dtype=torch.bool)
    filled[place] = True
    for at in range(0, row.shape[0], _ROWS):
        part = slice(at, at + _ROWS)
        coded = encode(store.rows_at(row[part].long()))
        codes[at // _BLOCK : (at + coded.shape[0]) // _BLOCK] = _interleave(_code(coded, step)[:, :coded_dims])
        here, real = cell_of_place[part][filled[part]], coded[filled[part]]
        sums.index_add_(0, here, real)
        squares.index_add_(0, here, (real * weights).square().sum(dim=1))
    centres = sums / sizes[:, None]
    spread = (squares / sizes - (centres * weights).square().sum(dim=1)).clamp_min(0).sqrt()
    padded = torch.nn.functional.pad(_code(centres, step), (0, 0, 0, -sizes.shape[0] % _BLOCK))
    return {
        "codes": codes,
        "start": start,
        "size": sizes.to(torch.int32),
        "row": row,
        "centres": _interleave(padded).contiguous(),
        "spread": spread,
        "step": step,
    }


def _code(coded: Tensor, step: Tensor) -> Tensor:
    return (coded / step + _MIDDLE).round().clamp(0, _HIGHEST).to(torch.uint8)


def _interleave(codes: Tensor) -> Tensor:
    """(rows, r) to blocks (rows / 8, r / 4, 8, 4)."""
    return codes.unflatten(0, (-1, _BLOCK)).unflatten(2, (-1, _FOURS)).transpose(1, 2)


def _assign(store: ExactStore, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """Each row's cell, by k-means: trained on a sample, then all rows are assigned."""
    count = int(8 * math.sqrt(store.rows))
    step = max(1, store.rows // (24 * count))
    chosen = torch.arange(0, store.rows, step)
    sample = torch.cat([encode(store.rows_at(part)) for part in chosen.split(_ROWS)])
    shuffled = torch.randperm(sample.shape[0], generator=torch.Generator().manual_seed(0))
    centres = sample[shuffled[:count]].clone()
    for _ in range(5):
        nearest = _nearest(sample, centres)
        sizes = torch.bincount(nearest, minlength=count)
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        centres = torch.where(sizes[:, None] > 0, sums / sizes.clamp_min(1)[:, None], centres)
    parts = (torch.arange(at, min(at + _ROWS, store.rows)) for at in range(0, store.rows, _ROWS))
    return torch.cat([_nearest(encode(store.rows_at(part)), centres) for part in parts])


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    half = centres.square().sum(dim=1) / 2
    return torch.cat([(part @ centres.T - half).argmax(dim=1) for part in points.split(2048)])
