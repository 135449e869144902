"""Where in documents the retrieved tokens lie (figure 5 of the paper), averaged over all documents."""

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
    questions: Sequence[tuple[str, str | None]],
    new_tokens: int,
    folder: Path,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[Path]]:
    """Answer questions about documents and plot the positions of the tokens that were retrieved.

    Returns means over all questions and the paths of the files.

    Parameters
    ----------
    questions : documents with a question about each; None asks for a summary
    new_tokens : largest number of tokens of an answer
    """
    measured: list[tuple[dict[str, float], list[FigureRow]]] = []
    for number, (document, question) in enumerate(questions):
        qa = DocumentQA(wrapped, document, question_format)
        answer = qa.ask(question, provenance=True, max_new_tokens=new_tokens, do_sample=False, num_beams=1)
        assert answer.output.provenance is not None
        measured.append(_measure(answer.output.provenance.hits.float()))
        if progress is not None:
            progress(number + 1, len(questions))
    all_statistics, histograms = zip(*measured, strict=True)
    statistics = {"documents": len(questions), **_means(all_statistics)}
    rows = [_means(bins) for bins in zip(*histograms, strict=True)]
    return statistics, write_figure(folder, "hits", rows, lambda _, axes: _draw(axes, rows, statistics))


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _measure(hits: Tensor) -> tuple[dict[str, float], list[FigureRow]]:
    """Statistics of hits (S,); and for each part of the document its share of all hits and of tokens ever retrieved."""
    length, total = hits.shape[0], float(hits.sum())
    statistics = {
        "tokens": length,
        "retrieved_once_or_more": float((hits > 0).float().mean()),
        "median_position": int(torch.searchsorted(hits.cumsum(0), total / 2)) / length,
    }
    edges = torch.linspace(0, length, _BINS + 1)
    covered = torch.cat((torch.zeros(1), hits.cumsum(0)))
    touched = torch.cat((torch.zeros(1), (hits > 0).float().cumsum(0)))
    hit_counts, touched_counts = (_interpolate(sums, edges).diff() for sums in (covered, touched))
    rows = [
        {
            "from": index / _BINS,
            "to": (index + 1) / _BINS,
            "share_of_hits": float(hit_counts[index]) / total,
            "share_retrieved": float(touched_counts[index]) / (length / _BINS),
        }
        for index in range(_BINS)
    ]
    return statistics, rows


def _interpolate(sums: Tensor, places: Tensor) -> Tensor:
    """Values of cumulative sums (S + 1,) at places between 0 and S, which need not be whole numbers."""
    low = places.floor().long().clamp_max(sums.shape[0] - 1)
    high = (low + 1).clamp_max(sums.shape[0] - 1)
    return torch.lerp(sums[low], sums[high], places - low)


def _draw(axes: Any, rows: Sequence[FigureRow], statistics: dict[str, Any]) -> None:
    axes.bar([row["from"] for row in rows], [row["share_of_hits"] for row in rows], width=1 / len(rows), align="edge")
    axes.axvline(statistics["median_position"], color="tab:red", linestyle="--", label="median")
    axes.set(xlabel="position in the document", ylabel="share of retrieved tokens", xlim=(0, 1))
    share, length = statistics["retrieved_once_or_more"], statistics["tokens"]
    axes.set_title(f"{share:.1%} of {length:,.0f} tokens were retrieved at least once", fontsize="medium")
    axes.legend()
