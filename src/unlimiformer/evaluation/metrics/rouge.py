"""ROUGE of answers against references, by the `rouge-score` package, as SCROLLS computes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ...errors import UnlimiformerError
from .base import Metric

KINDS = ("rouge1", "rouge2", "rougeL")


@cache
def scorer() -> Any:
    """The package's scorer; says what is missing if it is."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise UnlimiformerError("ROUGE needs the package `rouge-score`; install unlimiformer[evaluate]") from None
    return RougeScorer(list(KINDS), use_stemmer=True)


class Rouge(Metric):
    """F of ROUGE-1, -2 and -L. Their geometric mean is that of the means, and is made where these are."""

    name, parts = "rouge", KINDS

    def __init__(self) -> None:
        scorer()

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """For each kind the best F over the references."""
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for answer, right in zip(answers, references, strict=True):
            told = [scorer().score(reference, answer) for reference in right]
            for kind in KINDS:
                found[kind].append(100 * max(score[kind].fmeasure for score in told))
        return found


def geometric(means: dict[str, Any]) -> Any:
    """The geometric mean of the three kinds, SCROLLS' one number for summaries."""
    return (means["rouge1"] * means["rouge2"] * means["rougeL"]) ** (1 / 3)


def rouge(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Mean F of ROUGE-1, -2 and -L in percent, their geometric mean, and (as `mean`) their arithmetic one.

    The geometric mean of answers of one word is 0, however good they are: they have no bigrams.
    """
    if len(answers) != len(references) or not answers:
        raise UnlimiformerError(f"{len(answers)} answers and {len(references)} references; expected as many, and some")
    scores = Rouge().scores(answers, [[reference] for reference in references])
    means = {kind: sum(values) / len(values) for kind, values in scores.items()}
    return {**means, "rouge": geometric(means), "mean": sum(means.values()) / len(means)}
