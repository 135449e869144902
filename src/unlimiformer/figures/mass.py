"""The share of the attention that the k best tokens have, for each layer and head: the paper's 99 % claim, measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engines.seq2seq.sample_queries import sample_queries
from ..errors import UnlimiformerError
from ..functional import weigh
from ..memory.memory import Memory
from ..model import Unlimiformer
from .output import FigureRow, write

_QUERIES = 48  # of each head


@torch.no_grad()
def run(
    wrapped: Unlimiformer, memory: Memory, ks: Sequence[int], lengths: Sequence[int], folder: Path
) -> tuple[list[FigureRow], list[Path]]:
    """Real queries over the beginnings of a memory; a row for every length, layer, head and k."""
    attentions = wrapped.hooks.attentions
    heard = sample_queries(wrapped.model, wrapped.hooks, memory)
    if not heard or len(heard) % len(attentions):
        raise UnlimiformerError("the model's queries cannot be folded in every layer; the figure needs them")
    lengths = sorted({min(length, len(memory)) for length in lengths})
    ks = sorted(set(ks))
    rows: list[FigureRow] = []
    for layer, view in enumerate(attentions):
        calls = [call.unflatten(0, (-1, view.heads)) for call in heard[layer :: len(attentions)]]
        queries = _some(torch.cat(calls))
        for length in lengths:
            states = memory.store.rows_at(torch.arange(length)).float()
            for head in range(view.heads):
                weights, _ = weigh(queries[:, head].to(states) @ states.T, None, view.softcap)
                covered = weights.topk(min(max(ks), length)).values.cumsum(-1).mean(0)
                rows += [
                    {"tokens": length, "layer": layer, "head": head, "k": k, "mass": float(covered[min(k, length) - 1])}
                    for k in ks
                ]
    return rows, write(folder, "mass", rows, lambda figure, axes: _draw(figure, axes, rows), wide=2)


def _some(queries: Tensor) -> Tensor:
    """A few (N, H, D), evenly spread over what was written and read."""
    places = torch.linspace(0, queries.shape[0] - 1, min(_QUERIES, queries.shape[0])).long()
    return queries[places]


def summary(rows: Sequence[FigureRow]) -> list[FigureRow]:
    """Mean and least share of all layers and heads, for every length and k."""
    found = []
    for length, k in dict.fromkeys((row["tokens"], row["k"]) for row in rows):
        shares = [row["mass"] for row in rows if (row["tokens"], row["k"]) == (length, k)]
        found.append({"tokens": length, "k": k, "mean": sum(shares) / len(shares), "least": min(shares)})
    return found


def _draw(figure: Any, axes: Any, rows: Sequence[FigureRow]) -> None:
    lines, grid = axes
    told = summary(rows)
    for length in dict.fromkeys(row["tokens"] for row in told):
        mine = [row for row in told if row["tokens"] == length]
        lines.plot([row["k"] for row in mine], [row["mean"] for row in mine], marker="o", label=f"{length:,} tokens")
    lines.axhline(0.99, color="grey", linestyle=":")
    lines.set(xlabel="k", ylabel="share of the attention, mean of layers and heads", xscale="log")
    lines.legend()
    longest, ks = max(row["tokens"] for row in rows), sorted({row["k"] for row in rows})
    k = ks[len(ks) // 2]
    cells = {(row["layer"], row["head"]): row["mass"] for row in rows if (row["tokens"], row["k"]) == (longest, k)}
    layers, heads = (1 + max(place[axis] for place in cells) for axis in (0, 1))
    shares = np.array([[cells.get((layer, head), np.nan) for head in range(heads)] for layer in range(layers)])
    drawn = grid.imshow(shares, vmin=0, vmax=1, aspect="auto")
    grid.set(xlabel="head", ylabel="layer", title=f"k = {k:,} of {longest:,} tokens")
    figure.colorbar(drawn, ax=grid)
