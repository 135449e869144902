"""Where in a document retrieved tokens lie (the paper's figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..memory.encode import Progress
from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat
from .output import FigureRow, write

_BINS = 50


def run(
    wrapped: Unlimiformer,
    asking: QuestionFormat,
    text: str,
    question: str | None,
    new_tokens: int,
    folder: Path,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[Path]]:
    """One answer (or summary) from all of a text: the share of its tokens that were retrieved, and where they stand."""
    talk = DocumentQA(wrapped, text, asking)
    reply = talk.ask(question, progress, provenance=True, max_new_tokens=new_tokens, do_sample=False, num_beams=1)
    looked = reply.output.provenance
    assert looked is not None
    hits = looked.hits.float()
    length, total = hits.shape[0], float(hits.sum())
    middle = int(torch.searchsorted(hits.cumsum(0), total / 2))
    figures = {
        "tokens": length,
        "new_tokens": next(iter(looked.layers.values())).index.shape[0] if looked.layers else None,
        "retrieved_once_or_more": float((hits > 0).float().mean()),
        "median_position": middle / length,
        "answer": reply.text,
    }
    count = min(_BINS, length)
    bins = torch.arange(length) * count // length
    shares = torch.zeros(count).index_add_(0, bins, hits) / total
    seen = torch.zeros(count).index_add_(0, bins, (hits > 0).float()) / torch.bincount(bins, minlength=count)
    rows = [
        {
            "from": number / count,
            "to": (number + 1) / count,
            "share_of_hits": float(share),
            "share_retrieved": float(any_),
        }
        for number, (share, any_) in enumerate(zip(shares, seen, strict=True))
    ]
    return figures, write(folder, "hits", rows, lambda _, axes: _draw(axes, rows, figures))


def _draw(axes: Any, rows: Sequence[FigureRow], figures: dict[str, Any]) -> None:
    axes.bar([row["from"] for row in rows], [row["share_of_hits"] for row in rows], width=1 / len(rows), align="edge")
    axes.axvline(figures["median_position"], color="tab:red", linestyle="--", label="median")
    axes.set(xlabel="place in the text", ylabel="share of retrieved tokens", xlim=(0, 1))
    axes.set_title(
        f"{figures['retrieved_once_or_more']:.1%} of {figures['tokens']:,} tokens were retrieved at least once",
        fontsize="medium",
    )
    axes.legend()
