"""The IVF store: retrieves nearly all that the exact store retrieves, by scanning a part of the rows.

Rows are grouped into cells (see `clustering`). A query scans the cells whose best row may be among its k best, judged
by codes, and scores the best rows again by the states themselves. How far it searches is measured when the store is
built: far enough for the requested recall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import MemoryMismatchError
from .base import Hits
from .cells import Cells
from .clustering import build_cells
from .exact import ExactStore
from .kernels import native
from .recall import BATCH, RecallStats, exact_hits, measure, split_queries

MIN_ROWS = 16384
"""With fewer rows an exact scan is faster."""
_REACHES = (1.5, 2.0, 2.5, 2.75, 3.0, 3.25, 3.5, 4.0, 5.0)
_MOST_DEPTH = 1e9
_CANDIDATES = (1.25, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True)
class SearchDepth:
    """How far a query searches.

    Parameters
    ----------
    reach : how far above the score of its centre a cell may score, in spreads of the cell.
    candidates : rows that are scored again by the states, per requested hit.
    """

    reach: float
    candidates: float


class IVFStore(ExactStore):
    """An exact store whose search scans only the cells that may hold one of the k best rows.

    Parameters
    ----------
    store : the states.
    cells : the same states, grouped and coded.
    depth : how far a query searches.
    measured : recall with this depth.
    """

    def __init__(self, store: ExactStore, cells: Cells, depth: SearchDepth, measured: RecallStats) -> None:
        super().__init__(store.states, store.scales)
        self.cells, self.depth, self.measured = cells, depth, measured

    @property
    def nbytes(self) -> int:
        """Size of states, scales and cells in bytes."""
        return super().nbytes + self.cells.nbytes

    def describe(self) -> str:
        """Describe in one line how the store searches."""
        return f"ivf with {self.cells.count:,} cells over {super().describe()}: {self.measured}"

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what is stored on disk besides the states. On disk the store keeps its old name, "cells"."""
        description = {
            "store": "cells",
            "reach": self.depth.reach,
            "candidates": self.depth.candidates,
            "measured": self.measured.state_dict(),
        }
        return description, self.cells.to_arrays()

    @classmethod
    def from_state(cls, store: ExactStore, description: dict[str, Any], arrays: dict[str, Tensor]) -> IVFStore:
        """Restore from disk, over the states of `store`."""
        depth = SearchDepth(description["reach"], description["candidates"])
        if not all(
            type(value) in (int, float) and 0 <= value < _MOST_DEPTH for value in (depth.reach, depth.candidates)
        ):
            raise MemoryMismatchError(
                f"the memory's cells are searched to a depth of {depth.reach!r} and {depth.candidates!r}; expected "
                "numbers: index the text again with --store ivf"
            )
        cells = Cells.from_arrays(arrays, store.rows, store.width)
        return cls(store, cells, depth, RecallStats.from_state(description["measured"]))

    def search(self, queries: Tensor, k: int) -> Hits:
        """Find approximately the k states with the largest inner products with each of `queries` (N, D)."""
        if not native.serves(self.states) or 4 * k > self.rows:
            return super().search(queries, k)
        self._check_width(queries)
        index, score, _ = self._search_cells(queries.float(), k)
        return Hits(index, score, score > float("-inf"))

    def scanned_share(self, queries: Tensor, k: int) -> float:
        """Measure the share of the rows that is scanned, on average over the queries. Needs the kernels."""
        _, _, scanned = self._search_cells(queries.float(), k)
        return float(scanned.float().mean()) / self.rows

    def _search_cells(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        projected = queries @ self.cells.projection.T
        batch = native.CellQueries(
            data=queries,
            projected=projected * self.cells.step,
            reach=self.depth.reach * projected.norm(dim=1),
            candidates=min(self.rows, max(k, int(k * self.depth.candidates))),
        )
        return native.search_ivf(self.cells, self.states, self.scales, batch, k)


def build_ivf(store: ExactStore, queries: Tensor, k: int, recall: float) -> ExactStore:
    """Build an IVF store that has this mass recall on real queries (N, D).

    Returns `store` itself if that gains nothing: few rows, no compiled kernels, the recall is not reached, or an exact
    scan is as fast.
    """
    k = min(k, store.rows)
    if not native.serves(store.states) or store.rows < max(MIN_ROWS, 8 * k):
        return store
    fastest = fastest_ivf(store, queries, k, recall)
    _, measured_queries = split_queries(queries[: 16 * BATCH])
    exact = measure(store, measured_queries, exact_hits(store, measured_queries, k), k, 1.0)
    return fastest if fastest is not None and fastest.measured.milliseconds < exact.milliseconds else store


def fastest_ivf(store: ExactStore, queries: Tensor, k: int, recall: float) -> IVFStore | None:
    """Build an IVF store with the fastest of the search depths that reach the recall; None if none does."""
    training_queries, measured_queries = split_queries(queries)
    cells = build_cells(store, training_queries)
    exact = exact_hits(store, measured_queries, k)
    fastest = None
    for candidates in _CANDIDATES:
        for reach in _REACHES:
            candidate = IVFStore(store, cells, SearchDepth(reach, candidates), RecallStats(0, 0, 0, k))
            share = candidate.scanned_share(measured_queries[: 8 * BATCH], k)
            candidate.measured = measure(candidate, measured_queries, exact, k, share)
            if candidate.measured.mass_recall >= recall:
                if fastest is None or candidate.measured.milliseconds < fastest.measured.milliseconds:
                    fastest = candidate
                break  # a larger reach only takes longer
    return fastest
