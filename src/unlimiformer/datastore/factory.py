"""Puts a way of searching beside an exact store, by its name; and takes one up again from disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from .exact import ExactStore


def build(name: str, store: ExactStore, queries: Tensor, k: int, recall: float) -> ExactStore:
    """The store named, with that mass recall on real queries (M, D); the exact one where it cannot be had."""
    if name == "cells":
        from .ivf import build_ivf

        return build_ivf(store, queries, k, recall)
    if name == "faiss":
        from .faiss import build_faiss

        return build_faiss(store, queries, k, recall)
    return store


def restore(told: dict[str, Any], arrays: dict[str, Tensor], path: Callable[[str], Path | None]) -> ExactStore:
    """The store that a folder holds; `path` tells where it keeps an array."""
    states, scales = arrays["states"], arrays.get("scales")
    if told["store"] == "cells":
        from .ivf import IVFStore

        return IVFStore.from_state(states, scales, told, arrays)
    if told["store"] == "faiss":
        from .faiss import FaissStore

        return FaissStore.from_state(states, scales, told, str(path("faiss_index")))
    return ExactStore(states, scales)
