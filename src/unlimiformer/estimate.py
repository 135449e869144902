"""Estimates the time and the memory that indexing a text will take, by measuring a small part of the work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .benchmarks.timing import ms_per_token
from .datastore import DTYPES
from .model import Unlimiformer
from .text.tokenization import stream_tokens

_TIMED_BATCHES = 4
_TIMED_LENGTHS = (8192, 32768)  # decoding is measured at these and extrapolated linearly
_TIMED_TOKENS = 9
_TIMED_REPEATS = 3
_TOKEN_BYTES = 4 + 16  # on disk, for the id and the character offsets of a token


@dataclass(frozen=True)
class StorePlan:
    """Size and speed to expect of the exact store with one dtype."""

    dtype: str
    memory_bytes: int
    disk_bytes: int
    ms_per_token: float


@dataclass(frozen=True)
class Plan:
    """Windows and encoding time to expect of a text, and its size in every kind of store."""

    tokens: int
    windows: int
    encode_seconds: float
    stores: list[StorePlan]


@torch.no_grad()
def make_plan(wrapped: Unlimiformer, pieces: Iterable[str]) -> Plan:
    """Count the tokens of a text, encode a few of its windows, and decode over as many copies of their states."""
    text = _CountedText(pieces)
    token_count, first_ids = 0, torch.empty(0, dtype=torch.long)
    for part in stream_tokens(text, wrapped.tokenizer):
        token_count += part.ids.shape[0]
        if first_ids.shape[0] < wrapped.window * wrapped.config.batch_size:
            first_ids = torch.cat((first_ids, part.ids))
    windows = wrapped.engine.count_windows(token_count)
    is_encoder = wrapped.engine.kind == "encoder-decoder"
    seconds_per_window, states = _time_encoding(wrapped, first_ids, windows)
    stores = []
    for name, dtype in DTYPES.items():
        if dtype is torch.int8 and not is_encoder:
            continue
        row_bytes = states.shape[1] * dtype.itemsize + (4 if dtype is torch.int8 else 0)
        memory_bytes = token_count * row_bytes
        first_window_bytes = wrapped.window * states.shape[1] * 4 if is_encoder else 0
        disk_bytes = memory_bytes + token_count * _TOKEN_BYTES + text.bytes + first_window_bytes
        stores.append(StorePlan(name, memory_bytes, disk_bytes, _time_decoding(wrapped, states, token_count, dtype)))
    return Plan(token_count, windows, windows * seconds_per_window, stores)


class _CountedText:
    """Passes the pieces of a text on and counts their bytes."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces, self.bytes = pieces, 0

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            self.bytes += len(piece.encode())
            yield piece


def _time_encoding(wrapped: Unlimiformer, ids: Tensor, windows: int) -> tuple[float, Tensor]:
    """Encode one batch of windows several times; return the seconds per window and the states (S, D)."""
    length = min(wrapped.window, ids.shape[0])
    rows = max(1, min(wrapped.config.batch_size, windows, ids.shape[0] // length))
    batch = ids[: rows * length].reshape(rows, length).to(wrapped.engine.device)
    times = []
    for _ in range(1 + _TIMED_BATCHES):  # the first is a warm-up
        started = time.perf_counter()
        states = wrapped.engine.encode(batch, {}).cpu()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:]) / rows, states.flatten(0, 1).float()


def _time_decoding(wrapped: Unlimiformer, states: Tensor, tokens: int, dtype: torch.dtype) -> float:
    """Return the milliseconds per generated token over a memory of that many tokens."""
    engine = wrapped.engine
    lengths = sorted({min(tokens, length) for length in _TIMED_LENGTHS})
    if engine.kind == "decoder-only":  # what is selected has the same length, whatever the length of the document
        lengths = lengths[:1]
    milliseconds = [
        _best_ms_per_token(wrapped.model, **engine.decode_inputs(states, length, dtype)) for length in lengths
    ]
    if len(lengths) == 1:
        return milliseconds[0]
    slope = max(0.0, (milliseconds[1] - milliseconds[0]) / (lengths[1] - lengths[0]))
    return milliseconds[1] + slope * (tokens - lengths[1])


def _best_ms_per_token(model: Any, **inputs: Any) -> float:
    return min(ms_per_token(model, _TIMED_TOKENS, **inputs) for _ in range(_TIMED_REPEATS))
