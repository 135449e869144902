"""What wrapping costs where it should cost nothing: encoding against bare encoder calls, and input within the window.

BART-base's shape with random weights. Methods take turns in one process, and the median of several runs counts.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from ..model import Unlimiformer
from ..text.windows import plan_windows
from .decode import WINDOW, bart_base


@torch.no_grad()
def run(tokens: int = 8192, repeats: int = 5, batch_size: int = 4, compute_dtype: Any = None) -> dict[str, float]:
    """Tokens a second, bare and ours, and time of a short input, plain and wrapped."""
    model = bart_base()
    ids = torch.randint(5, 50_000, (tokens,), generator=torch.Generator().manual_seed(0))
    windows = [ids[w.start : w.end] for w in plan_windows(tokens, WINDOW)]
    batches = [torch.stack(windows[i : i + batch_size]) for i in range(0, len(windows), batch_size)]
    masks = [torch.ones_like(batch) for batch in batches]
    encoder = model.get_encoder()

    def bare() -> None:
        for batch, mask in zip(batches, masks, strict=True):
            encoder(input_ids=batch, attention_mask=mask)

    def ours() -> None:
        with Unlimiformer(model, batch_size=batch_size, compute_dtype=compute_dtype) as u:
            started.append(time.perf_counter())
            u.index(ids)

    short = ids[None, : WINDOW // 2]
    settings = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "num_beams": 1}

    def plain() -> None:
        model.generate(input_ids=short, attention_mask=torch.ones_like(short), **settings)

    def wrapped() -> None:
        with Unlimiformer(model):
            started.append(time.perf_counter())
            plain()

    started: list[float] = []
    times: dict[str, list[float]] = {}
    for _ in range(repeats):
        for method in (bare, ours, *(plain, wrapped) * 4):
            started[:] = [time.perf_counter()]
            method()
            times.setdefault(method.__name__, []).append(time.perf_counter() - started[-1])
    middle = {name: statistics.median(measured) for name, measured in times.items()}
    return {
        "tokens_per_second_bare": tokens / middle["bare"],
        "tokens_per_second_ours": tokens / middle["ours"],
        "throughput_ratio": middle["bare"] / middle["ours"],
        "short_input_plain_seconds": middle["plain"],
        "short_input_wrapped_seconds": middle["wrapped"],
        "short_input_ratio": middle["wrapped"] / middle["plain"],
    }
