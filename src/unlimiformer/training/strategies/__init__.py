"""The methods of the paper and its baselines, one small class each."""

from .alternating import Alternating
from .base import Strategy
from .chunked import Chunked
from .memorizing import Memorizing
from .random import Random
from .retrieval import Retrieval
from .sled import Sled
from .standard import Standard, Truncate

STRATEGIES: dict[str, type[Strategy]] = {
    each.name: each for each in (Standard, Chunked, Random, Retrieval, Alternating, Truncate, Sled, Memorizing)
}

__all__ = ["STRATEGIES", "Strategy", *sorted(each.__name__ for each in STRATEGIES.values())]
