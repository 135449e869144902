"""What each store finds of what an exact float32 scan finds, and what it costs: real states, real queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..datastore import DTYPES, ExactStore, build
from ..datastore.recall import exact_hits, held_out, measure
from ..engines.seq2seq.sample_queries import pool_queries, sample_queries
from ..memory.memory import Memory
from ..model import Unlimiformer

WAYS = (
    ("exact", "float32"),
    ("exact", "bfloat16"),
    ("exact", "int8"),
    ("cells", "int8"),
    ("faiss", "int8"),
)
"""Stores and dtypes that are compared."""


@dataclass(frozen=True)
class SearchRow:
    """One store."""

    store: str
    dtype: str
    tokens: int
    recall: float
    mass_recall: float
    ms_for_a_dozen_queries: float
    looks_at: float
    build_seconds: float
    bytes_per_token: float


def run(
    wrapped: Unlimiformer, memory: Memory, top_k: int, target: float, log: Callable[[str], None] = lambda _: None
) -> list[SearchRow]:
    """Measures every store over one memory of float32 states, on a quarter of its real queries."""
    queries = pool_queries(sample_queries(wrapped.model, wrapped.hooks, memory))
    _, asked = held_out(queries)
    reference = exact_hits(memory.store, asked, top_k)
    rows = []
    for name, dtype in WAYS:
        log(f"{name}, {dtype}")
        plain = _copy(memory.store, dtype)
        started = time.perf_counter()
        store = build(name, plain, queries, top_k, target)
        built = time.perf_counter() - started
        fell_back = name != "exact" and type(store) is ExactStore
        looked_at = 1.0 if type(store) is ExactStore else store.measured.looked_at  # type: ignore[attr-defined]
        seen = measure(store, asked, reference, top_k, looked_at)
        rows.append(
            SearchRow(
                f"{name}, fell back to exact" if fell_back else name,
                dtype,
                len(memory),
                seen.recall,
                seen.mass_recall,
                seen.milliseconds,
                looked_at,
                built,
                store.nbytes / len(memory),
            )
        )
    return rows


def report(rows: Sequence[SearchRow], **about: Any) -> dict[str, Any]:
    """What goes into the JSON file."""
    return {**about, "rows": [asdict(row) for row in rows]}


def _copy(store: ExactStore, dtype: str) -> ExactStore:
    copied = ExactStore.empty(store.rows, store.width, DTYPES[dtype])
    at = 0
    for block in store.blocks():
        copied.put(at, block)
        at += block.shape[0]
    return copied
