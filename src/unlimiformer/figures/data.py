"""Statistics of a dataset (table 2 of the paper), and how long its inputs are (figure 1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..tasks import Example, merge_answers
from .output import FigureRow, write_figure

_CONTEXT_LENGTHS = (1024, 4096, 16384)
"""Input limits of common models, drawn for comparison: BART, PRIMERA, and long-range transformers."""


def run(examples: Sequence[Example], tokenizer: Any, folder: Path) -> tuple[dict[str, Any], list[Path]]:
    """Count the tokens of inputs (question and document) and outputs.

    Returns the statistics and the paths of the files. The rows are bins of input lengths by powers of 2.
    """
    questions = [example for example, _ in merge_answers(examples)]
    documents = dict(zip(distinct := {e.document for e in questions}, _lengths(distinct, tokenizer), strict=True))
    asked = _lengths([example.question or "" for example in questions], tokenizer)
    inputs = [documents[example.document] + length for example, length in zip(questions, asked, strict=True)]
    outputs = _lengths([example.answer for example in examples if example.answer is not None], tokenizer)
    statistics = {
        "examples": len(questions),
        "documents": len(documents),
        "mean_input": sum(inputs) / len(inputs),
        "mean_output": sum(outputs) / len(outputs) if outputs else None,
        "shortest_input": min(inputs),
        "longest_input": max(inputs),
    }
    rows = _histogram(inputs)
    return statistics, write_figure(folder, "data", rows, lambda _, axes: _draw(axes, rows, statistics))


def _lengths(texts: Any, tokenizer: Any) -> list[int]:
    return [len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]


def _histogram(lengths: Sequence[int]) -> list[FigureRow]:
    """Number of inputs between each power of 2 and the next, without empty bins at the ends."""
    counts = Counter(int(math.log2(max(1, length))) for length in lengths)
    return [
        {"from": 2**power, "to": 2 ** (power + 1), "examples": counts[power]}
        for power in range(min(counts), max(counts) + 1)
    ]


def _draw(axes: Any, rows: Sequence[FigureRow], statistics: dict[str, Any]) -> None:
    starts, widths = [row["from"] for row in rows], [row["to"] - row["from"] for row in rows]
    axes.bar(starts, [row["examples"] for row in rows], width=widths, align="edge", edgecolor="white")
    axes.axvline(statistics["mean_input"], color="tab:red", linestyle="--", label="mean")
    for number, length in enumerate(_CONTEXT_LENGTHS):
        axes.axvline(length, color="grey", linestyle=":", label=None if number else "common input limits")
    axes.set(xlabel="tokens of an input", ylabel="examples")
    axes.set_xscale("log", base=2)
    axes.legend()
