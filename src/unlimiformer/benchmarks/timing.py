"""Measures the time between generated tokens."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

from transformers.generation.streamers import BaseStreamer

_WARM_UP = 3  # calls of the streamer that do not count: the prompt and two tokens


class _TokenTimes(BaseStreamer):
    """A streamer that records when each token arrives."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def ms_per_token(model: Any, new_tokens: int, **inputs: Any) -> float:
    """Return the median milliseconds between tokens that are generated greedily.

    The first two tokens are left out, because they include one-time costs. The median leaves out short disturbances.

    Parameters
    ----------
    new_tokens : number of tokens after the warm-up
    inputs : arguments of `model.generate`
    """
    streamer, count = _TokenTimes(), _WARM_UP + new_tokens
    greedy = {"do_sample": False, "num_beams": 1, "max_new_tokens": count, "min_new_tokens": count}
    model.generate(streamer=streamer, **inputs, **greedy)
    return statistics.median(after - before for before, after in pairwise(streamer.times[_WARM_UP:])) * 1000
