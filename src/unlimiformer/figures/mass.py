"""Share of the attention mass that the k best tokens hold, by layer and head: checks the paper's claim of 99 %."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedModelError
from ..functional import softmax_weights
from ..memory.memory import Memory
from ..model import Unlimiformer
from .output import FigureRow, write_figure

_QUERIES_PER_HEAD = 48


@torch.no_grad()
def run(
    wrapped: Unlimiformer, memory: Memory, ks: Sequence[int], lengths: Sequence[int], folder: Path
) -> tuple[list[FigureRow], list[Path]]:
    """Measure the attention mass of the k best tokens for real queries of the model.

    Returns one row for every length, layer, head and k, and the paths of the files.

    Parameters
    ----------
    lengths : numbers of tokens from the start of the memory on which the mass is measured
    """
    attentions = wrapped.engine.cross_attentions
    sampled = wrapped.engine.sample_queries(memory)
    if not sampled or len(sampled) % len(attentions):
        raise UnsupportedModelError(
            "the queries of this model cannot be folded in every layer, which this figure needs; choose another model"
        )
    lengths = sorted({min(length, len(memory)) for length in lengths})
    ks = sorted(set(ks))
    rows: list[FigureRow] = []
    for layer, view in enumerate(attentions):
        calls = [call.unflatten(0, (-1, view.heads)) for call in sampled[layer :: len(attentions)]]
        queries = _subsample(torch.cat(calls))
        for length in lengths:
            states = memory.store.rows_at(torch.arange(length)).float()  # (S, D)
            for head in range(view.heads):
                weights, _ = softmax_weights(queries[:, head].to(states) @ states.T, None, view.softcap)
                covered = weights.topk(min(max(ks), length)).values.cumsum(-1).mean(0)
                rows += [
                    {"tokens": length, "layer": layer, "head": head, "k": k, "mass": float(covered[min(k, length) - 1])}
                    for k in ks
                ]
    return rows, write_figure(folder, "mass", rows, lambda figure, axes: _draw(figure, axes, rows), panels=2)


def _subsample(queries: Tensor) -> Tensor:
    """Pick at most `_QUERIES_PER_HEAD` of the queries (N, H, D), evenly spaced."""
    indices = torch.linspace(0, queries.shape[0] - 1, min(_QUERIES_PER_HEAD, queries.shape[0])).long()
    return queries[indices]


def summary(rows: Sequence[FigureRow]) -> list[FigureRow]:
    """Return the mean and the smallest share over all layers and heads, for every length and k."""
    summaries = []
    for length, k in dict.fromkeys((row["tokens"], row["k"]) for row in rows):
        shares = [row["mass"] for row in rows if (row["tokens"], row["k"]) == (length, k)]
        summaries.append({"tokens": length, "k": k, "mean": sum(shares) / len(shares), "least": min(shares)})
    return summaries


def _draw(figure: Any, axes: Any, rows: Sequence[FigureRow]) -> None:
    """Draw the mean share against k on the left, and one k of the longest input by layer and head on the right."""
    curves, heatmap = axes
    means = summary(rows)
    for length in dict.fromkeys(row["tokens"] for row in means):
        points = [row for row in means if row["tokens"] == length]
        curves.plot(
            [row["k"] for row in points], [row["mean"] for row in points], marker="o", label=f"{length:,} tokens"
        )
    curves.axhline(0.99, color="grey", linestyle=":")
    curves.set(xlabel="k", ylabel="share of the attention, mean of layers and heads", xscale="log")
    curves.legend()
    longest, ks = max(row["tokens"] for row in rows), sorted({row["k"] for row in rows})
    k = ks[len(ks) // 2]
    masses = {(row["layer"], row["head"]): row["mass"] for row in rows if (row["tokens"], row["k"]) == (longest, k)}
    layers, heads = 1 + max(layer for layer, _ in masses), 1 + max(head for _, head in masses)
    shares = np.array([[masses.get((layer, head), np.nan) for head in range(heads)] for layer in range(layers)])
    image = heatmap.imshow(shares, vmin=0, vmax=1, aspect="auto")
    heatmap.set(xlabel="head", ylabel="layer", title=f"k = {k:,} of {longest:,} tokens")
    figure.colorbar(image, ax=heatmap)
