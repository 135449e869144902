"""Recall, speed and size of every store, against an exact float32 scan, on real states and queries."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..datastore import DTYPES, ExactStore
from ..datastore.faiss import build_faiss
from ..datastore.ivf import build_ivf
from ..datastore.recall import exact_hits, measure, split_queries
from ..engines.seq2seq.sample_queries import pool_queries
from ..memory.memory import Memory
from ..model import Unlimiformer
from .machine import Machine
from .report import report

__all__ = ["STORES", "SearchRow", "report", "run"]

STORES = (("exact", "float32"), ("exact", "bfloat16"), ("exact", "int8"), ("ivf", "int8"), ("faiss", "int8"))
"""Names and dtypes of the stores that are compared."""
_BUILDERS = {"ivf": build_ivf, "faiss": build_faiss}


@dataclass(frozen=True)
class SearchRow:
    """The measurements of one store.

    Parameters
    ----------
    recall : share of the exact k best that the store finds
    mass_recall : attention mass of what it finds, divided by that of the exact k best
    looks_at : share of the stored rows that a search scores
    reading_share : the bytes of all rows, as a share of what the machine reads in that time; None for a store that
        reads other rows for each query
    """

    store: str
    dtype: str
    tokens: int
    recall: float
    mass_recall: float
    ms_for_a_dozen_queries: float
    looks_at: float
    build_seconds: float
    bytes_per_token: float
    reading_share: float | None


def run(
    wrapped: Unlimiformer,
    memory: Memory,
    top_k: int,
    target: float,
    machine: Machine,
    log: Callable[[str], None] = lambda line: None,
) -> list[SearchRow]:
    """Measure every store over one memory, on queries that were not used to build it.

    Parameters
    ----------
    memory : its states are float32
    target : mass recall that approximate stores have to reach; one that cannot is replaced by the exact store
    """
    queries = pool_queries(wrapped.engine.sample_queries(memory))
    _, test_queries = split_queries(queries)
    reference = exact_hits(memory.store, test_queries, top_k)
    rows = []
    for name, dtype in STORES:
        log(f"{name}, {dtype}")
        states = _convert(memory.store, dtype)
        started = time.perf_counter()
        store = _build(name, states, queries, top_k, target)
        build_seconds = time.perf_counter() - started
        is_exact = type(store) is ExactStore
        looks_at = 1.0 if is_exact else store.measured.looked_at  # type: ignore[attr-defined]
        stats = measure(store, test_queries, reference, top_k, looks_at)
        rows.append(
            SearchRow(
                store=f"{name}, fell back to exact" if is_exact and name != "exact" else name,
                dtype=dtype,
                tokens=len(memory),
                recall=stats.recall,
                mass_recall=stats.mass_recall,
                ms_for_a_dozen_queries=stats.milliseconds,
                looks_at=looks_at,
                build_seconds=build_seconds,
                bytes_per_token=store.nbytes / len(memory),
                reading_share=machine.reading_share(store.nbytes, stats.milliseconds / 1000) if is_exact else None,
            )
        )
    return rows


def _build(name: str, states: ExactStore, queries: Tensor, top_k: int, target: float) -> ExactStore:
    return states if name == "exact" else _BUILDERS[name](states, queries, top_k, target)


def _convert(store: ExactStore, dtype: str) -> ExactStore:
    """Copy the rows of a store into one of another dtype."""
    converted = ExactStore.empty(store.rows, store.width, DTYPES[dtype])
    row = 0
    for block in store.blocks():
        converted.put(row, block)
        row += block.shape[0]
    return converted
