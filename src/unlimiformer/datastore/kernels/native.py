"""Call the C kernels on torch tensors: scan, mix and the search in cells. Knows nothing of heads, models or memories.

Where `serves` is False, stores use their torch implementation instead, which gives the same hits.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from . import dispatch
from .library import library

if TYPE_CHECKING:
    from ..cells import Cells

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
_MAX_ROWS = 2**31  # rows are counted with 32 bits
_PARALLEL_WORK = 2048  # below this, starting threads costs more than it saves
_LARGE_PAGE, _MADV_HUGEPAGE = 1 << 21, 14
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


class _States(ctypes.Structure):
    """The struct `States` of topk.h."""

    _fields_ = (("data", _POINTER), ("scales", _POINTER), ("rows", _INT), ("width", _INT), ("kind", _INT))

    @classmethod
    def of(cls, states: Tensor, scales: Tensor | None) -> _States:
        rows, width = states.shape
        return cls(
            data=states.data_ptr(),
            scales=None if scales is None else scales.data_ptr(),
            rows=rows,
            width=width,
            kind=KINDS[states.dtype],
        )


class _Queries(ctypes.Structure):
    """The struct `Queries` of topk.h."""

    _fields_ = (("data", _POINTER), ("count", _INT))


class _TopK(ctypes.Structure):
    """The struct `TopK` of topk.h."""

    _fields_ = (("score", _POINTER), ("row", _POINTER), ("k", _INT))


class _Mixture(ctypes.Structure):
    """The struct `Mixture` of scan.c."""

    _fields_ = (("row", _POINTER), ("weight", _POINTER), ("count", _INT), ("k", _INT))


class _CellIndex(ctypes.Structure):
    """The struct `CellIndex` of ivf.c."""

    _fields_ = (
        *((name, _POINTER) for name in ("codes", "start", "size", "row", "centres", "spread")),
        *((name, _INT) for name in ("cells", "coded", "directions")),
        ("code_deviation", ctypes.c_float),
    )

    @classmethod
    def of(cls, cells: Cells) -> _CellIndex:
        return cls(
            codes=cells.codes.data_ptr(),
            start=cells.start.data_ptr(),
            size=cells.size.data_ptr(),
            row=cells.row.data_ptr(),
            centres=cells.centres.data_ptr(),
            spread=cells.spread.data_ptr(),
            cells=cells.count,
            coded=cells.coded,
            directions=cells.directions,
            code_deviation=cells.code_deviation,
        )


class _CellQueries(ctypes.Structure):
    """The struct `CellQueries` of ivf.c."""

    _fields_ = (
        *((name, _POINTER) for name in ("data", "projected", "reach")),
        *((name, _INT) for name in ("count", "candidates")),
    )


@dataclass(frozen=True)
class CellQueries:
    """Queries of a search in cells.

    Parameters
    ----------
    data : the queries (N, D).
    projected : the queries in the directions and steps of the codes (N, directions).
    reach : how far above the score of its centre a cell may score, in spreads of the cell (N,).
    candidates : rows of each query that are scored by their states.
    """

    data: Tensor
    projected: Tensor
    reach: Tensor
    candidates: int


def serves(states: Tensor) -> bool:
    """Whether the kernels are available and can read this array."""
    readable = states.device.type == "cpu" and states.dtype in KINDS and states.is_contiguous()
    return readable and states.shape[0] < _MAX_ROWS and dispatch.chosen() is not None


def scan(states: Tensor, scales: Tensor | None, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k best rows of `states` (S, D) for each of `queries` (N, D): row indices and scores, (N, k) each.

    Slots that no row fills (a NaN score is never kept) have score -inf and row 0.
    """
    queries, count = queries.contiguous(), queries.shape[0]
    row, score = _empty_hits(count, k)
    failed = _kernels().scan(
        _States.of(states, scales),
        _Queries(data=queries.data_ptr(), count=count),
        _threads_for(states.shape[0]),
        _TopK(score=score.data_ptr(), row=row.data_ptr(), k=k),
    )
    if failed:
        raise MemoryError(f"no memory to keep the {k} best rows of {count} queries; lower top_k or the batch size")
    return row, score


def search_ivf(
    cells: Cells, states: Tensor, scales: Tensor | None, queries: CellQueries, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the k best rows of `states` (S, D) in the cells that may hold them; ivf.c says how.

    Returns row indices and scores, (N, k) each, and how many rows were scanned for each query (N,).
    """
    count = queries.data.shape[0]
    data, projected, reach = (part.contiguous() for part in (queries.data, queries.projected, queries.reach))
    row, score = _empty_hits(count, k)
    scanned = torch.empty(count, dtype=torch.int64)
    batch = _CellQueries(
        data=data.data_ptr(),
        projected=projected.data_ptr(),
        reach=reach.data_ptr(),
        count=count,
        candidates=queries.candidates,
    )
    failed = _kernels().search_ivf(
        _CellIndex.of(cells),
        _States.of(states, scales),
        batch,
        torch.get_num_threads(),
        _TopK(score=score.data_ptr(), row=row.data_ptr(), k=k),
        scanned.data_ptr(),
    )
    if failed:
        raise MemoryError(
            f"no memory to keep the {queries.candidates} best rows of {count} queries; lower top_k or the batch size"
        )
    return row, score, scanned


def mix(states: Tensor, scales: Tensor | None, rows: Tensor, weights: Tensor) -> Tensor:
    """Compute weighted sums of rows of `states` (S, D): `rows` and `weights` (N, K) to (N, D), in float32."""
    count, k = rows.shape
    rows, weights = rows.contiguous(), weights.float().contiguous()
    out = torch.empty((count, states.shape[1]))
    _kernels().mix(
        _States.of(states, scales),
        _Mixture(row=rows.data_ptr(), weight=weights.data_ptr(), count=count, k=k),
        _threads_for(count * k),
        out.data_ptr(),
    )
    return out


def prefer_large_pages(array: Tensor) -> None:
    """Advise Linux to put an array, before it is filled, on large pages: its rows are read in random order.

    Only advice: on other systems, or if it is not followed, nothing changes.
    """
    if array.device.type != "cpu" or array.nbytes < 4 * _LARGE_PAGE or not sys.platform.startswith("linux"):
        return
    start = -(-array.data_ptr() // _LARGE_PAGE) * _LARGE_PAGE
    length = (array.data_ptr() + array.nbytes - start) // _LARGE_PAGE * _LARGE_PAGE
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_HUGEPAGE)


class _Kernels(NamedTuple):
    """The C functions of one instruction set."""

    scan: Callable[..., int]
    mix: Callable[..., None]
    search_ivf: Callable[..., int]


@cache
def _kernels_for(instructions: str) -> _Kernels:
    """Return the functions for an instruction set, with their signatures declared."""
    kernels = library()
    assert kernels is not None, "check serves() first"
    states, best = ctypes.POINTER(_States), ctypes.POINTER(_TopK)
    scan, mix, search_ivf = (getattr(kernels, f"{name}_{instructions}") for name in _Kernels._fields)
    scan.argtypes = [states, ctypes.POINTER(_Queries), _INT, best]
    mix.argtypes = [states, ctypes.POINTER(_Mixture), _INT, _POINTER]
    mix.restype = None
    search_ivf.argtypes = [
        ctypes.POINTER(_CellIndex),
        states,
        ctypes.POINTER(_CellQueries),
        _INT,
        best,
        _POINTER,
    ]
    return _Kernels(scan, mix, search_ivf)


def _kernels() -> _Kernels:
    instructions = dispatch.chosen()
    assert instructions is not None, "check serves() first"
    return _kernels_for(instructions)


def _empty_hits(count: int, k: int) -> tuple[Tensor, Tensor]:
    """Allocate row indices and scores (count, k)."""
    return torch.empty((count, k), dtype=torch.int64), torch.empty((count, k))


def _threads_for(work: int) -> int:
    return 1 if work < _PARALLEL_WORK else torch.get_num_threads()
