"""What reading a text will take, told before any work: windows, time, bytes. Calibrated by a little of that work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .benchmarks.timing import ms_per_token
from .datastore import DTYPES, ExactStore
from .engines import CausalEngine, Seq2SeqEngine
from .memory.memory import Memory
from .model import Unlimiformer
from .text.tokenization import stream_tokens

_BATCHES = 4
_LENGTHS = (8192, 32768)  # decoding is timed at these and goes on in a straight line
_NEW_TOKENS = 9
_PLACES = 4 + 16  # bytes a token that its id and offsets take on disk


@dataclass(frozen=True)
class StorePlan:
    """One dtype of the exact store."""

    dtype: str
    memory_bytes: int
    disk_bytes: int
    ms_per_token: float


@dataclass(frozen=True)
class Plan:
    """What is to be expected."""

    tokens: int
    windows: int
    encode_seconds: float
    stores: list[StorePlan]

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@torch.no_grad()
def make_plan(wrapped: Unlimiformer, pieces: Iterable[str]) -> Plan:
    """Counts a text's tokens, encodes some of its windows, and decodes over as many copies of their states."""
    counted, opening, characters = 0, torch.empty(0, dtype=torch.long), 0

    def noted() -> Iterable[str]:
        nonlocal characters
        for piece in pieces:
            characters += len(piece.encode())
            yield piece

    wanted = wrapped.window * wrapped.config.batch_size
    for part in stream_tokens(noted(), wrapped.tokenizer):
        counted += part.ids.shape[0]
        if opening.shape[0] < wanted:
            opening = torch.cat((opening, part.ids))
    cut = wrapped.engine.reader.cut
    windows = len(cut.behind(wrapped.engine.reader.prefix_ids().shape[0]).windows(counted))
    per_window, states = _encoding(wrapped, opening, windows)
    stores = []
    for name, dtype in DTYPES.items():
        if cut.causal and dtype is torch.int8:
            continue
        row = states.shape[1] * dtype.itemsize + (4 if dtype is torch.int8 else 0)
        kept = counted * row
        first = 0 if cut.causal else wrapped.window * states.shape[1] * 4
        written = kept + counted * _PLACES + characters + first
        stores.append(StorePlan(name, kept, written, _decoding(wrapped, states, counted, dtype)))
    return Plan(counted, windows, windows * per_window, stores)


def _encoding(wrapped: Unlimiformer, opening: Tensor, windows: int) -> tuple[float, Tensor]:
    """Seconds a window, and some states (n, D)."""
    length = min(wrapped.window, opening.shape[0])
    rows = max(1, min(wrapped.config.batch_size, windows, opening.shape[0] // length))
    batch = opening[: rows * length].reshape(rows, length).to(wrapped.engine.reader.device)
    times = []
    for _ in range(1 + _BATCHES):
        started = time.perf_counter()
        states = wrapped.engine.encode(batch, {}).cpu()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:]) / rows, states.flatten(0, 1).float()


def _decoding(wrapped: Unlimiformer, states: Tensor, tokens: int, dtype: torch.dtype) -> float:
    """Milliseconds a generated token over a memory of so many tokens."""
    if isinstance(wrapped.engine, CausalEngine):
        return _answering(wrapped, wrapped.engine)
    assert isinstance(wrapped.engine, Seq2SeqEngine)
    lengths = sorted({min(tokens, length) for length in _LENGTHS})
    measured = []
    for length in lengths:
        copies = states.repeat(-(-length // states.shape[0]), 1)[:length]
        store = ExactStore.empty(length, states.shape[1], dtype, wrapped.config.device or wrapped.engine.reader.device)
        store.put(0, copies + 0.1 * torch.randn(copies.shape, generator=torch.Generator().manual_seed(0)))
        memory = Memory(store, torch.zeros(length, dtype=torch.long), None, 2)
        outputs = wrapped.hooks.output([memory])
        mask = torch.ones((1, 1), dtype=torch.long, device=outputs[0].device)
        call = {"encoder_outputs": outputs, "attention_mask": mask}
        measured.append(min(ms_per_token(wrapped.model, _NEW_TOKENS, **call) for _ in range(3)))
    if len(lengths) == 1:
        return measured[0]
    slope = max(0.0, (measured[1] - measured[0]) / (lengths[1] - lengths[0]))
    return measured[1] + slope * (tokens - lengths[1])


def _answering(wrapped: Unlimiformer, engine: CausalEngine) -> float:
    """Milliseconds a generated token behind as much of a document as is chosen."""
    ids = torch.full((1, 64 + engine.top_k), 3, device=engine.reader.device)
    call = {"inputs": ids, "attention_mask": torch.ones_like(ids)}
    return min(ms_per_token(wrapped.model, _NEW_TOKENS, **call) for _ in range(3))
