"""Measure on real queries how much of the exact store's result another store retrieves, and how long it takes."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Hits
from .exact import ExactStore

BATCH = 12
"""Queries that are searched at once, as one layer of a model does."""
_MEASURED_QUERIES = 40 * BATCH


@dataclass(frozen=True)
class RecallStats:
    """Results on held-out real queries, compared with the exact store at the same k.

    Parameters
    ----------
    recall : share of the exact hits that was retrieved.
    mass_recall : share of the exact hits' attention mass that was retrieved.
    looked_at : share of the rows that was scanned.
    k : rows that each query retrieved.
    milliseconds : median time of a batch of queries.
    """

    recall: float
    mass_recall: float
    looked_at: float
    k: int
    milliseconds: float = 0.0

    @classmethod
    def from_state(cls, fields: Any) -> RecallStats:
        """Restore what `state_dict` gave; raise `TypeError` for anything else."""
        stats = cls(**fields)
        if not all(isinstance(value, int | float) for value in vars(stats).values()):
            raise TypeError("a measured recall is no number")
        return stats

    def state_dict(self) -> dict[str, float]:
        """Return what is stored on disk: all but the time, which holds for this machine only."""
        return {name: value for name, value in vars(self).items() if name != "milliseconds"}

    def __str__(self) -> str:
        return (
            f"scans {self.looked_at:.1%} of the rows, mass recall {self.mass_recall:.4f}, recall {self.recall:.4f}, "
            f"measured with k {self.k}"
        )


def split_queries(queries: Tensor) -> tuple[Tensor, Tensor]:
    """Split queries into those to build a store with and a sample of the others to measure it with."""
    measured = queries[::4]
    training = torch.cat([queries[i::4] for i in (1, 2, 3)]).float()
    return training, measured[:: max(1, len(measured) // _MEASURED_QUERIES)].float()


def exact_hits(store: ExactStore, queries: Tensor, k: int) -> list[Hits]:
    """Search all rows exactly, one result per batch of queries."""
    return [ExactStore.search(store, batch, k) for batch in queries.split(BATCH)]


def measure(store: ExactStore, queries: Tensor, exact: list[Hits], k: int, looked_at: float) -> RecallStats:
    """Compare a store's hits with the `exact` ones of the same queries, and time its search.

    Parameters
    ----------
    looked_at : the share of the rows that the store scans; copied to the result.
    """
    masses, overlaps, seconds = [], [], []
    for batch, expected in zip(queries.split(BATCH), exact, strict=True):
        started = time.perf_counter()
        hits = store.search(batch, k)
        seconds.append(time.perf_counter() - started)
        masses.append(mass_recall(hits, expected))
        overlaps.append(overlap(hits, expected, store.rows))
    recall, mass = (float(torch.cat(values).mean()) for values in (overlaps, masses))
    return RecallStats(recall, mass, looked_at, k, 1000 * statistics.median(seconds))


def mass_recall(hits: Hits, exact: Hits) -> Tensor:
    """Divide the attention mass of the hits by that of the exact k best, for each query (N,)."""
    highest = exact.score.amax(dim=1, keepdim=True)
    return (hits.score - highest).exp().sum(dim=1) / (exact.score - highest).exp().sum(dim=1)


def overlap(hits: Hits, exact: Hits, rows: int) -> Tensor:
    """Compute the share of the exact k best among the hits, for each query (N,)."""
    is_best = torch.zeros((exact.index.shape[0], rows), dtype=torch.bool, device=exact.index.device)
    is_best.scatter_(1, exact.index, True)
    return (is_best.gather(1, hits.index) & hits.valid).sum(dim=1) / exact.index.shape[1]
