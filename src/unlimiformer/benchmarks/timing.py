"""Times between generated tokens."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

from transformers.generation.streamers import BaseStreamer


class _Clock(BaseStreamer):
    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def ms_per_token(model: Any, new_tokens: int, **call: Any) -> float:
    """Median time between tokens, after two to warm up: what happens once, and a neighbour's noise, do not count."""
    clock, count = _Clock(), 3 + new_tokens
    greedy = {"do_sample": False, "num_beams": 1, "max_new_tokens": count, "min_new_tokens": count}
    model.generate(streamer=clock, **call, **greedy)
    return statistics.median(after - before for before, after in pairwise(clock.times[3:])) * 1000
