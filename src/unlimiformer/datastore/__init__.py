"""Stores of encoder states: the only place that knows top-k, padding and misses."""

from .base import Hits, Scorer, Store
from .exact import DTYPES, ExactStore, encode_rows

__all__ = ["DTYPES", "ExactStore", "Hits", "Scorer", "Store", "encode_rows"]
