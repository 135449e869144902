"""How much of what the exact store finds another store finds, and how long it takes: measured on real queries."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Hits
from .exact import ExactStore

TOGETHER = 12
"""Queries that a layer asks at once."""
_ASKED = 40 * TOGETHER


@dataclass(frozen=True)
class RecallStats:
    """What was seen on held-out real queries, against the exact store with the same k."""

    recall: float
    mass_recall: float
    looked_at: float
    k: int
    milliseconds: float = 0.0

    def state_dict(self) -> dict[str, float]:
        """What is kept on disk: all but the time, which is this machine's, this time."""
        return {name: value for name, value in vars(self).items() if name != "milliseconds"}

    def __str__(self) -> str:
        return (
            f"looks at {self.looked_at:.1%} of the rows, mass recall {self.mass_recall:.4f}, recall {self.recall:.4f}, "
            f"measured with k {self.k}"
        )


def held_out(queries: Tensor) -> tuple[Tensor, Tensor]:
    """Queries to learn from, and some of the others to measure with."""
    asked = queries[::4]
    return torch.cat([queries[i::4] for i in (1, 2, 3)]).float(), asked[:: max(1, len(asked) // _ASKED)].float()


def exact_hits(store: ExactStore, queries: Tensor, k: int) -> list[Hits]:
    """What an exact scan finds, a dozen queries at a time."""
    return [ExactStore.search(store, part, k) for part in queries.split(TOGETHER)]


def measure(store: ExactStore, queries: Tensor, exact: list[Hits], k: int, looked_at: float) -> RecallStats:
    """What a store finds of the exact hits, and the median time for a dozen queries."""
    mass, share, times = [], [], []
    for part, expected in zip(queries.split(TOGETHER), exact, strict=True):
        started = time.perf_counter()
        found = store.search(part, k)
        times.append(time.perf_counter() - started)
        mass.append(mass_recall(found, expected))
        share.append(overlap(found, expected, store.rows))
    recall, total = (float(torch.cat(values).mean()) for values in (share, mass))
    return RecallStats(recall, total, looked_at, k, 1000 * statistics.median(times))


def mass_recall(found: Hits, exact: Hits) -> Tensor:
    """Attention mass of what was found, over that of the exact k best, for each query (N,)."""
    highest = exact.score.amax(dim=1, keepdim=True)
    return (found.score - highest).exp().sum(dim=1) / (exact.score - highest).exp().sum(dim=1)


def overlap(found: Hits, exact: Hits, rows: int) -> Tensor:
    """Share of the exact k best that was found, for each query (N,)."""
    marked = torch.zeros((exact.index.shape[0], rows), dtype=torch.bool, device=exact.index.device)
    marked.scatter_(1, exact.index, True)
    return (marked.gather(1, found.index) & found.valid).sum(dim=1) / exact.index.shape[1]
