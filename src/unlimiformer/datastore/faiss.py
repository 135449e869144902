"""The faiss store: inverted lists searched by inner product, with as many probes as the requested recall needs.

Its hits are scored again by the states themselves. Needs the package `faiss`. On real queries the IVF store is faster
at the same recall; this one is for comparison, and for users who want a well-known index.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor

from ..errors import MemoryMismatchError
from ..utils.optional import require
from .base import Hits
from .exact import ExactStore
from .recall import RecallStats, exact_hits, measure, split_queries

_PROBED_SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)
_CANDIDATES = 1.5  # rows that are scored again, per requested hit
_TRAINING_ROWS = 64  # per list
_MIN_ROWS_PER_LIST = 39  # with fewer, faiss warns


class FaissStore(ExactStore):
    """An exact store with a faiss index of its centred states.

    Parameters
    ----------
    store : the states.
    index : the faiss index.
    probes : lists that each query searches.
    measured : recall with this many probes.
    path : the file that the index is mapped from, if any.
    """

    def __init__(
        self, store: ExactStore, index: Any, probes: int, measured: RecallStats, path: str | None = None
    ) -> None:
        super().__init__(store.states, store.scales)
        self.index, self.probes, self.measured = index, probes, measured
        self._path = path

    @property
    def nbytes(self) -> int:
        """Size of states, scales, codes and row ids in bytes."""
        return super().nbytes + self.rows * (self.index.code_size + 8)

    def describe(self) -> str:
        """Describe in one line how the store searches."""
        return f"faiss over {super().describe()}: probes {self.probes} of {self.index.nlist} lists, {self.measured}"

    def search(self, queries: Tensor, k: int) -> Hits:
        """Find approximately the k states with the largest inner products with each of `queries` (N, D)."""
        candidates = min(self.rows, int(k * _CANDIDATES))
        self.index.nprobe = self.probes
        _, rows = self.index.search(queries.float().cpu().contiguous().numpy(), candidates)
        index = torch.from_numpy(rows).to(self.states.device)  # -1 where the probed lists have too few rows
        if int(index.max()) >= self.rows:
            raise MemoryMismatchError("the faiss index names rows that the memory does not have; index the text again")
        scores = torch.stack([self.rows_at(i.clamp_min(0)) @ q for i, q in zip(index, queries.float(), strict=True)])
        scores = scores.masked_fill(index < 0, float("-inf"))
        score, selected = scores.topk(min(k, candidates), dim=1, sorted=False)
        return Hits(index.gather(1, selected).clamp_min(0), score, score > float("-inf"))

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what is stored on disk besides the states."""
        if self._path is not None:
            packed = torch.from_file(self._path, size=os.path.getsize(self._path), dtype=torch.uint8)
        else:
            packed = torch.from_numpy(_import_faiss().serialize_index(self.index))
        description = {"store": "faiss", "probes": self.probes, "measured": self.measured.state_dict()}
        return description, {"faiss_index": packed}

    @classmethod
    def from_state(cls, store: ExactStore, description: dict[str, Any], path: str) -> FaissStore:
        """Restore from disk; the index stays in its file, mapped."""
        faiss = _import_faiss()
        damaged = MemoryMismatchError(
            "the faiss index of the stored memory does not fit its states; index the text again with --store faiss"
        )
        try:
            index = faiss.read_index(path, faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError:
            raise damaged from None
        probes = description["probes"]
        fits = (index.ntotal, index.d) == (store.rows, store.width) and isinstance(index, faiss.IndexIVF)
        if not fits or type(probes) is not int or not 1 <= probes <= index.nlist:
            raise damaged
        return cls(store, index, probes, RecallStats.from_state(description["measured"]), path)


def build_faiss(store: ExactStore, queries: Tensor, k: int, recall: float) -> ExactStore:
    """Build a faiss store that has this mass recall on real queries (N, D); return `store` if that is not reached."""
    faiss = _import_faiss()
    if store.states.device.type != "cpu":
        return store
    lists = max(1, min(int(4 * math.sqrt(store.rows)), store.rows // _MIN_ROWS_PER_LIST))
    index = faiss.index_factory(store.width, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    sample = store.rows_at(torch.arange(0, store.rows, max(1, store.rows // (_TRAINING_ROWS * lists))))
    mean = sample.mean(dim=0)  # subtracting it changes all scores of a query alike, so their order stays
    index.train((sample - mean).numpy())
    for block in store.blocks():
        index.add((block - mean).numpy())
    _, measured_queries = split_queries(queries)
    exact = exact_hits(store, measured_queries, k)
    for share in _PROBED_SHARES:
        candidate = FaissStore(store, index, max(1, int(share * lists)), RecallStats(0, 0, share, k))
        candidate.measured = measure(candidate, measured_queries, exact, k, share)
        if candidate.measured.mass_recall >= recall:
            return candidate
    return store


def _import_faiss() -> Any:
    return require("faiss", "faiss", 'the store "faiss"')
