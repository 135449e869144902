"""The cost of wrapping where it should be zero: encoding against bare encoder calls, and input within the window.

The model has BART-base's shape and random weights. Methods take turns in one process, and the median of the repeats
counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..memory.compute_dtype import resolve_compute_dtype
from ..model import Unlimiformer
from ..text.windows import plan_windows
from .decode import WINDOW, bart_base
from .machine import Machine

_SHORT_INPUT_REPEATS = 4  # short inputs are measured this often for each encoding


@torch.no_grad()
def run(
    machine: Machine, tokens: int = 8192, repeats: int = 5, batch_size: int = 4, compute_dtype: Any = None
) -> dict[str, float]:
    """Measure tokens per second of encoding, bare and wrapped, and seconds of a short input, plain and wrapped.

    Parameters
    ----------
    batch_size : windows that are encoded at once
    compute_dtype : dtype in which the wrapped model encodes; None for that of the weights
    """
    model = bart_base()
    ids = torch.randint(5, 50_000, (tokens,), generator=torch.Generator().manual_seed(0))
    bare = _bare_encoding(model, ids, batch_size)

    def wrapped() -> float:
        with Unlimiformer(model, batch_size=batch_size, compute_dtype=compute_dtype) as u:
            started = time.perf_counter()
            u.index(ids)
        return time.perf_counter() - started

    plain_short, wrapped_short = _short_input(model, ids[None, : WINDOW // 2])
    methods = (bare, wrapped, *(plain_short, wrapped_short) * _SHORT_INPUT_REPEATS)
    times: dict[Callable[[], float], list[float]] = {}
    for _ in range(repeats):
        for method in methods:
            times.setdefault(method, []).append(method())
    median = {method: statistics.median(seconds) for method, seconds in times.items()}
    dtype = torch.bfloat16 if resolve_compute_dtype(compute_dtype, model.get_encoder()) else torch.float32
    operations = encoder_operations(model, tokens)
    return {
        "product_share_bare": machine.product_share(operations, median[bare]),
        "product_share_ours": machine.product_share(operations, median[wrapped], dtype),
        "tokens_per_second_bare": tokens / median[bare],
        "tokens_per_second_ours": tokens / median[wrapped],
        "throughput_ratio": median[bare] / median[wrapped],
        "short_input_plain_seconds": median[plain_short],
        "short_input_wrapped_seconds": median[wrapped_short],
        "short_input_ratio": median[wrapped_short] / median[plain_short],
    }


def encoder_operations(model: Any, tokens: int) -> float:
    """Multiplications and additions in the products of matrices that encode so many tokens, in overlapping windows."""
    layers = [module for module in model.get_encoder().modules() if isinstance(module, torch.nn.Linear)]
    weights = sum(layer.weight.numel() for layer in layers)
    encoded = [window.end - window.start for window in plan_windows(tokens, WINDOW)]
    attention = 4 * model.config.encoder_layers * model.config.d_model * sum(length**2 for length in encoded)
    return 2 * weights * sum(encoded) + attention


def _bare_encoding(model: Any, ids: Tensor, batch_size: int) -> Callable[[], float]:
    """Return a function that encodes all windows with the model's encoder alone and returns the seconds."""
    windows = [ids[w.start : w.end] for w in plan_windows(ids.shape[0], WINDOW)]
    batches = [torch.stack(windows[i : i + batch_size]) for i in range(0, len(windows), batch_size)]
    masks = [torch.ones_like(batch) for batch in batches]
    encoder = model.get_encoder()

    def encode() -> float:
        started = time.perf_counter()
        for batch, mask in zip(batches, masks, strict=True):
            encoder(input_ids=batch, attention_mask=mask)
        return time.perf_counter() - started

    return encode


def _short_input(model: Any, ids: Tensor) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return functions that generate from ids (1, S) with the plain and the wrapped model, and return the seconds."""
    settings = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "num_beams": 1}

    def generate() -> None:
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)

    def plain() -> float:
        started = time.perf_counter()
        generate()
        return time.perf_counter() - started

    def wrapped() -> float:
        with Unlimiformer(model):
            started = time.perf_counter()
            generate()
        return time.perf_counter() - started

    return plain, wrapped
