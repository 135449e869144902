"""Build a store by its name on top of an exact one, and restore a stored one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import MemoryMismatchError
from .exact import ExactStore

IVF_NAMES = ("ivf", "cells")
"""Names of the IVF store. "cells" is the old one: a stored memory keeps it in its memory.json and, shortened to
`cell_`, in the names of its arrays, so that memories of all versions stay readable."""


def build(name: str, store: ExactStore, queries: Tensor, k: int, recall: float) -> ExactStore:
    """Build the store called `name` over the states of `store`; return `store` itself if it cannot gain anything.

    Parameters
    ----------
    name : "exact", "ivf" or "faiss".
    queries : real queries of the model (N, D).
    k : rows that each query retrieves.
    recall : share of the exact top k's attention mass that the new store must retrieve.
    """
    if name in IVF_NAMES:
        from .ivf import build_ivf

        return build_ivf(store, queries, k, recall)
    if name == "faiss":
        from .faiss import build_faiss

        return build_faiss(store, queries, k, recall)
    return store


def restore(
    description: dict[str, Any], arrays: dict[str, Tensor], array_path: Callable[[str], Path | None]
) -> ExactStore:
    """Restore a store from disk.

    Parameters
    ----------
    description : the first part of the store's `state_dict`.
    arrays : all arrays of the memory by name, with "states" and, for int8, "scales".
    array_path : returns the path of an array's file.
    """
    states, scales = arrays["states"], arrays.get("scales")
    name = description["store"]
    if name in IVF_NAMES:
        from .ivf import IVFStore

        return IVFStore.from_state(ExactStore(states, scales), description, arrays)
    if name == "faiss":
        from .faiss import FaissStore

        return FaissStore.from_state(ExactStore(states, scales), description, str(array_path("faiss_index")))
    if name != "exact":
        raise MemoryMismatchError(f"the memory is searched by {name!r}, which is unknown; index the text again")
    return ExactStore(states, scales)
