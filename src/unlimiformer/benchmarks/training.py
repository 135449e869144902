"""Step time and peak memory of every training method, beside standard fine-tuning and beside their own parts.

BART-base's shape with random weights; a step is one example, forward and backward, without the optimizer. Each
measurement has a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..engines.seq2seq.placeholder import PlaceholderOutput
from ..model import Unlimiformer
from ..text.windows import plan_windows
from ..training.strategies import STRATEGIES
from ..utils.system import peak_memory
from .decode import WINDOW, bart_base

PARTS = ("encoding", "decoder step")
"""What every long method has to do at least: encode all windows, and one decoder step over one window of states."""


@dataclass(frozen=True)
class TrainStepRow:
    """One method: seconds of a step (the best of several), and bytes at the peak beyond the loaded model.

    Ratios are None until what they compare with is measured.
    """

    method: str
    tokens: int
    seconds: float
    peak_bytes: int
    ratio_to_standard: float | None
    ratio_to_parts: float | None


def run(
    tokens: int, target: int, methods: Sequence[str], repeats: int, log: Callable[[str], None]
) -> Iterator[TrainStepRow]:
    """Measures the parts, standard fine-tuning, then the methods, and yields rows as they come."""
    seconds: dict[str, float] = {}
    for method in dict.fromkeys((*PARTS, "standard", *methods)):
        log(f"{tokens:,} tokens: {method}")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds[method], peak = pool.apply(_measure, (method, tokens, target, repeats))
        to_standard = to_parts = None
        if "standard" in seconds:
            to_standard = seconds[method] / seconds["standard"]
            to_parts = seconds[method] / sum(seconds[part] for part in PARTS)
        yield TrainStepRow(method, tokens, seconds[method], peak, to_standard, to_parts)


def _measure(method: str, tokens: int, target: int, repeats: int) -> tuple[float, int]:
    model = bart_base().train()
    ids = torch.randint(5, 50_000, (1, tokens), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(5, 50_000, (1, target), generator=torch.Generator().manual_seed(1))
    step = _parts(model, ids, labels)[method] if method in PARTS else _method(model, method, ids, labels)
    before = peak_memory()
    step(0, True)  # warm up: pages and kernels, with the shortest input
    turns = 2 if method == "alternating" else 1
    best = float("inf")
    for number in range(repeats):
        model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        for turn in range(turns):
            step(number * turns + turn, False)
        best = min(best, (time.perf_counter() - started) / turns)
    return best, peak_memory() - before


def _parts(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, Callable[[int, bool], None]]:
    def encoding(number: int, short: bool) -> None:
        del number
        for win in plan_windows(WINDOW if short else ids.shape[1], WINDOW):
            window = ids[:, win.start : win.end]
            model.get_encoder()(input_ids=window, attention_mask=torch.ones_like(window))[0].sum().backward()

    def decoder_step(number: int, short: bool) -> None:
        del number, short
        states = torch.randn(1, WINDOW, model.config.d_model)
        output = PlaceholderOutput(last_hidden_state=states)  # type: ignore[arg-type]
        model(encoder_outputs=output, labels=labels).loss.backward()

    return dict(zip(PARTS, (encoding, decoder_step), strict=True))


def _method(model: Any, method: str, ids: torch.Tensor, labels: torch.Tensor) -> Callable[[int, bool], None]:
    wrapped = Unlimiformer(model)
    strategy = STRATEGIES[method](wrapped.top_k)
    layers = range(len(wrapped.hooks.attentions))
    strategy.prepare(model, wrapped.hooks.attentions)

    def step(number: int, short: bool) -> None:
        wrapped.hooks.policies = [strategy.train_policy(layer, number) for layer in layers]
        shown = strategy.inputs(ids[0, :WINDOW] if short else ids[0], WINDOW)
        for part in shown:  # an epoch of chunked training sees every part
            model(input_ids=part[None], labels=labels).loss.backward()

    return step


def report(rows: Sequence[TrainStepRow], **about: Any) -> dict[str, Any]:
    """For JSON."""
    return {**about, "rows": [asdict(row) for row in rows]}
