"""Time and peak memory of a training step, for every training method and for standard fine-tuning.

The model has BART-base's shape and random weights. A step is one example, forward and backward, without the optimizer.
Each method runs in its own process, so that its peak memory can be measured.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..engines.seq2seq.placeholder import PlaceholderOutput
from ..model import Unlimiformer
from ..text.windows import plan_windows
from ..training.strategies import STRATEGIES
from ..utils.system import peak_memory
from .decode import WINDOW, bart_base
from .encode import encoder_operations
from .machine import Machine
from .report import report

__all__ = ["PARTS", "TrainStepRow", "report", "run"]

PARTS = ("encoding", "decoder step")
"""The least that a long method has to do: encode all windows, and one decoder step over one window of states."""
_PARTLY = ("decoder step", "standard", "chunked")  # do not encode all overlapping windows
Step = Callable[[int, bool], None]
"""Runs one training step; takes the index of the step, and whether it is a warm-up with an input of one window."""


@dataclass(frozen=True)
class TrainStepRow:
    """The measurements of one method.

    Parameters
    ----------
    seconds, deviation : time of a step, mean and standard deviation of several
    best_seconds : the fastest of them
    peak_bytes : peak memory beyond the loaded model
    ratio_to_standard : `best_seconds` divided by that of standard fine-tuning; None for what is measured before it
    ratio_to_parts : `best_seconds` divided by the sum of those of `PARTS`; None for what is measured before them
    product_share : the products that encode all windows, forward and backward, as a share of what the machine could
        multiply in that time; None for what does not encode all windows
    """

    method: str
    tokens: int
    seconds: float
    deviation: float
    best_seconds: float
    peak_bytes: int
    ratio_to_standard: float | None
    ratio_to_parts: float | None
    product_share: float | None


def run(
    tokens: int, target: int, methods: Sequence[str], repeats: int, machine: Machine, log: Callable[[str], None]
) -> Iterator[TrainStepRow]:
    """Measure the parts, standard fine-tuning and the methods, and yield each row when it is measured.

    Parameters
    ----------
    tokens : length of the source
    target : length of the target, in tokens
    """
    best: dict[str, float] = {}
    operations = 3 * encoder_operations(bart_base(), tokens)  # backward has two products for each
    for method in dict.fromkeys((*PARTS, "standard", *methods)):
        log(f"{tokens:,} tokens: {method}")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            times, peak = pool.apply(_measure, (method, tokens, target, repeats))
        best[method], deviation = min(times), statistics.stdev(times) if len(times) > 1 else 0.0
        to_standard = to_parts = None
        if "standard" in best:
            to_standard = best[method] / best["standard"]
            to_parts = best[method] / sum(best[part] for part in PARTS)
        yield TrainStepRow(
            method=method,
            tokens=tokens,
            seconds=statistics.mean(times),
            deviation=deviation,
            best_seconds=best[method],
            peak_bytes=peak,
            ratio_to_standard=to_standard,
            ratio_to_parts=to_parts,
            product_share=None if method in _PARTLY else machine.product_share(operations, best[method]),
        )


def _measure(method: str, tokens: int, target: int, repeats: int) -> tuple[list[float], int]:
    """Return the seconds of every step and the bytes that steps take beyond the model."""
    model = bart_base().train()
    ids = torch.randint(5, 50_000, (1, tokens), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(5, 50_000, (1, target), generator=torch.Generator().manual_seed(1))
    step = _part_steps(model, ids, labels)[method] if method in PARTS else _method_step(model, method, ids, labels)
    peak_before = peak_memory()
    step(0, True)
    steps_per_repeat = 2 if method == "alternating" else 1  # its two kinds of steps differ in time
    times = []
    for repeat in range(repeats):
        model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        for index in range(steps_per_repeat):
            step(repeat * steps_per_repeat + index, False)
        times.append((time.perf_counter() - started) / steps_per_repeat)
    return times, peak_memory() - peak_before


def _part_steps(model: Any, ids: Tensor, labels: Tensor) -> dict[str, Step]:
    def encoding(index: int, warm_up: bool) -> None:
        del index
        for window in plan_windows(WINDOW if warm_up else ids.shape[1], WINDOW):
            window_ids = ids[:, window.start : window.end]
            model.get_encoder()(input_ids=window_ids, attention_mask=torch.ones_like(window_ids))[0].sum().backward()

    def decoder_step(index: int, warm_up: bool) -> None:
        del index, warm_up
        states = torch.randn(1, WINDOW, model.config.d_model)
        output = PlaceholderOutput(last_hidden_state=states)  # type: ignore[arg-type]
        model(encoder_outputs=output, labels=labels).loss.backward()

    return dict(zip(PARTS, (encoding, decoder_step), strict=True))


def _method_step(model: Any, method: str, ids: Tensor, labels: Tensor) -> Step:
    wrapped = Unlimiformer(model)
    strategy = STRATEGIES[method](wrapped.top_k)
    engine = wrapped.engine
    strategy.prepare(model, engine.cross_attentions)

    def step(index: int, warm_up: bool) -> None:
        policies = [strategy.train_policy(layer, index) for layer in range(len(engine.cross_attentions))]
        chunks = strategy.inputs(ids[0, :WINDOW] if warm_up else ids[0], WINDOW)
        with engine.context(policies=policies):
            for chunk in chunks:  # chunked training has several for one example
                model(input_ids=chunk[None], labels=labels).loss.backward()

    return step
