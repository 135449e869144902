"""ROUGE of answers against references, computed by the `rouge-score` package with stemming, as SCROLLS does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ...utils.optional import require
from .base import Metric

KINDS = ("rouge1", "rouge2", "rougeL")


@cache
def scorer() -> Any:
    """Return the scorer of the `rouge-score` package; an error names the extra if it is not installed."""
    return require("rouge_score.rouge_scorer", "evaluate", "ROUGE").RougeScorer(list(KINDS), use_stemmer=True)


class Rouge(Metric):
    """F of ROUGE-1, -2 and -L. Their geometric mean is not a score of one answer; see `geometric_mean`."""

    name, parts = "rouge", KINDS

    def __init__(self) -> None:
        scorer()  # raises at once if the package is missing

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """Return, for each kind of ROUGE, F in percent for every answer and its best reference."""
        columns: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for answer, texts in zip(answers, references, strict=True):
            by_reference = [scorer().score(reference, answer) for reference in texts]
            for kind in KINDS:
                columns[kind].append(100 * max(scores[kind].fmeasure for scores in by_reference))
        return columns


def geometric_mean(means: dict[str, Any]) -> Any:
    """Return the geometric mean of the means of ROUGE-1, -2 and -L, which SCROLLS reports for summaries."""
    return (means["rouge1"] * means["rouge2"] * means["rougeL"]) ** (1 / 3)
