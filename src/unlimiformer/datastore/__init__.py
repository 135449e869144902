"""Stores of encoder states: the only place that knows top-k search, padding and invalid hits."""

from .base import Hits, Scorer, Store
from .exact import DTYPES, ExactStore, encode_rows
from .factory import build, restore

__all__ = ["DTYPES", "ExactStore", "Hits", "Scorer", "Store", "build", "encode_rows", "restore"]
