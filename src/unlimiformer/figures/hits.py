"""Where in a document the retrieved tokens lie (figure 5 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..memory.encode import Progress
from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat
from .output import FigureRow, write_figure

_BINS = 50


def run(
    wrapped: Unlimiformer,
    question_format: QuestionFormat,
    text: str,
    question: str | None,
    new_tokens: int,
    folder: Path,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[Path]]:
    """Answer one question about a text and plot the positions of the tokens that were retrieved.

    Returns the summary statistics and the paths of the files.

    Parameters
    ----------
    question : None asks for a summary
    new_tokens : largest number of tokens of the answer
    """
    qa = DocumentQA(wrapped, text, question_format)
    answer = qa.ask(question, progress, provenance=True, max_new_tokens=new_tokens, do_sample=False, num_beams=1)
    provenance = answer.output.provenance
    assert provenance is not None
    hits = provenance.hits.float()
    length, total = hits.shape[0], float(hits.sum())
    median = int(torch.searchsorted(hits.cumsum(0), total / 2))
    statistics = {
        "tokens": length,
        "new_tokens": next(iter(provenance.layers.values())).index.shape[0] if provenance.layers else None,
        "retrieved_once_or_more": float((hits > 0).float().mean()),
        "median_position": median / length,
        "answer": answer.text,
    }
    rows = _histogram(hits)
    return statistics, write_figure(folder, "hits", rows, lambda _, axes: _draw(axes, rows, statistics))


def _histogram(hits: Tensor) -> list[FigureRow]:
    """For each part of the document: its share of all hits, and the share of its tokens retrieved at least once."""
    length = hits.shape[0]
    count = min(_BINS, length)
    bins = torch.arange(length) * count // length
    hit_shares = torch.zeros(count).index_add_(0, bins, hits) / float(hits.sum())
    retrieved = torch.zeros(count).index_add_(0, bins, (hits > 0).float()) / torch.bincount(bins, minlength=count)
    return [
        {
            "from": index / count,
            "to": (index + 1) / count,
            "share_of_hits": float(hit_shares[index]),
            "share_retrieved": float(retrieved[index]),
        }
        for index in range(count)
    ]


def _draw(axes: Any, rows: Sequence[FigureRow], statistics: dict[str, Any]) -> None:
    axes.bar([row["from"] for row in rows], [row["share_of_hits"] for row in rows], width=1 / len(rows), align="edge")
    axes.axvline(statistics["median_position"], color="tab:red", linestyle="--", label="median")
    axes.set(xlabel="position in the document", ylabel="share of retrieved tokens", xlim=(0, 1))
    axes.set_title(
        f"{statistics['retrieved_once_or_more']:.1%} of {statistics['tokens']:,} tokens were retrieved at least once",
        fontsize="medium",
    )
    axes.legend()
