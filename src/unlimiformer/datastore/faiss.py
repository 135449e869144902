"""The faiss store: inverted lists by inner product, with as many probes as the recall that was asked for needs.

Hits are scored again by the states themselves. Needs `faiss-cpu`. On real queries the cell store is faster at the same
recall; this one is for comparison, and for those who want a known index.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor

from ..errors import UnlimiformerError
from .base import Hits
from .exact import ExactStore
from .recall import RecallStats, exact_hits, held_out, measure

_PROBED = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)
_CANDIDATES = 1.5  # rows scored again, for each one wanted


class FaissStore(ExactStore):
    """An exact store with a faiss index of its centred states beside it."""

    def __init__(self, states: Tensor, scales: Tensor | None, index: Any, probes: int, measured: RecallStats) -> None:
        super().__init__(states, scales)
        self.index, self.probes, self.measured = index, probes, measured
        self._path: str | None = None  # where the index was read from, which it goes on reading

    @property
    def nbytes(self) -> int:
        """Bytes of states, scales and codes."""
        return super().nbytes + self.rows * (self.index.code_size + 8)

    def describe(self) -> str:
        """How it searches, in words."""
        probed = f"{self.probes} of {self.index.nlist} lists probed"
        return f"faiss beside {super().describe()}: {probed}, {self.measured}"

    def search(self, queries: Tensor, k: int) -> Hits:
        """The k states with the largest inner products with each of `queries` (N, D), nearly."""
        wanted = min(self.rows, int(k * _CANDIDATES))
        self.index.nprobe = self.probes
        _, found = self.index.search(queries.float().cpu().contiguous().numpy(), wanted)
        index = torch.from_numpy(found).to(self.states.device)
        scores = torch.stack([self.rows_at(i.clamp_min(0)) @ q for i, q in zip(index, queries.float(), strict=True)])
        scores = scores.masked_fill(index < 0, float("-inf"))
        score, at = scores.topk(min(k, wanted), dim=1, sorted=False)
        return Hits(index.gather(1, at).clamp_min(0), score, score > float("-inf"))

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What is kept on disk beside the states."""
        faiss = _library()
        if self._path is not None:
            packed = torch.from_file(self._path, size=os.path.getsize(self._path), dtype=torch.uint8)
        else:
            packed = torch.from_numpy(faiss.serialize_index(self.index))
        return {"store": "faiss", "probes": self.probes, "measured": self.measured.state_dict()}, {
            "faiss_index": packed
        }

    @classmethod
    def from_state(cls, states: Tensor, scales: Tensor | None, told: dict[str, Any], path: str) -> FaissStore:
        """From what is kept on disk; the lists stay there, mapped."""
        faiss = _library()
        index = faiss.read_index(path, faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        made = cls(states, scales, index, told["probes"], RecallStats(**told["measured"]))
        made._path = path
        return made


def build_faiss(store: ExactStore, queries: Tensor, k: int, recall: float) -> ExactStore:
    """A faiss store of the same states with that mass recall on real queries (M, D); else the store itself."""
    faiss = _library()
    if store.states.device.type != "cpu":
        return store
    lists = max(1, min(int(4 * math.sqrt(store.rows)), store.rows // 39))
    index = faiss.index_factory(store.width, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    sample = store.rows_at(torch.arange(0, store.rows, max(1, store.rows // (64 * lists))))
    mean = sample.mean(dim=0)  # what is added to all scores of a query alike changes nothing
    index.train((sample - mean).numpy())
    for block in store.blocks():
        index.add((block - mean).numpy())
    _, asked = held_out(queries)
    exact = exact_hits(store, asked, k)
    for share in _PROBED:
        made = FaissStore(store.states, store.scales, index, max(1, int(share * lists)), RecallStats(0, 0, share, k))
        made.measured = measure(made, asked, exact, k, share)
        if made.measured.mass_recall >= recall:
            return made
    return store


def _library() -> Any:
    try:
        import faiss
    except ImportError:
        raise UnlimiformerError('store is "faiss", which is not installed; run: pip install faiss-cpu') from None
    return faiss
