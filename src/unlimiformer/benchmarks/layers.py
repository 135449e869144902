"""Memory and time by the number of decoder layers that retrieve (table 8 of the paper).

The model has BART-base's shape and random weights. Every number of layers runs in a process of its own, so that its
peak memory can be measured. 0 layers is the plain model, which reads the first window.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ..model import Unlimiformer
from ..utils.system import peak_memory
from .decode import WINDOW, bart_base
from .report import report

__all__ = ["LayersRow", "report", "run"]


@dataclass(frozen=True)
class LayersRow:
    """The measurements of one number of layers.

    Parameters
    ----------
    layers : number of decoder layers that retrieve, the last ones
    peak_bytes : peak memory of the process beyond the loaded model
    seconds : time to encode the input and to generate
    """

    layers: int
    tokens: int
    peak_bytes: int
    seconds: float


def run(tokens: int, new_tokens: int, log: Callable[[str], None]) -> Iterator[LayersRow]:
    """Measure every number of layers, from none to all."""
    for layers in range(bart_base().config.decoder_layers + 1):
        log(f"{tokens:,} tokens: {layers} layers")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peak, seconds = pool.apply(_measure, (layers, tokens, new_tokens))
        yield LayersRow(layers, tokens, peak, seconds)


def _measure(layers: int, tokens: int, new_tokens: int) -> tuple[int, float]:
    """Bytes beyond the model, and seconds."""
    model = bart_base().eval()
    ids = torch.randint(5, 50_000, (1, tokens), generator=torch.Generator().manual_seed(0))
    generation = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
    before, started = peak_memory(), time.perf_counter()
    if layers == 0:
        model.generate(input_ids=ids[:, :WINDOW], **generation)
    else:
        last = range(model.config.decoder_layers - layers, model.config.decoder_layers)
        with Unlimiformer(model, layers=tuple(last)):
            model.generate(input_ids=ids, **generation)
    return peak_memory() - before, time.perf_counter() - started
