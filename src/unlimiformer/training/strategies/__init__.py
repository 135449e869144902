"""The training methods of the paper and its baselines: one small class for each, by name in `STRATEGIES`."""

from .alternating import Alternating
from .base import Strategy
from .chunked import Chunked
from .memorizing import Memorizing
from .random import Random
from .reread import Reread
from .retrieval import Retrieval
from .sled import Sled
from .standard import Standard, Truncate

_CLASSES = (Standard, Chunked, Random, Retrieval, Alternating, Truncate, Sled, Memorizing, Reread)
STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in _CLASSES}

__all__ = ["STRATEGIES", "Strategy", *sorted(strategy.__name__ for strategy in _CLASSES)]
