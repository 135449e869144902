"""ROUGE of answers against references, by the `rouge-score` package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ..errors import UnlimiformerError

KINDS = ("rouge1", "rouge2", "rougeL")


@cache
def scorer() -> Any:
    """The package's scorer; says what is missing if it is."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise UnlimiformerError("ROUGE needs the package `rouge-score`; install unlimiformer[train]") from None
    return RougeScorer(list(KINDS), use_stemmer=True)


def rouge(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Mean F of ROUGE-1, -2 and -L in percent, their geometric mean, and (as `mean`) their arithmetic one.

    The geometric mean of answers of one word is 0, however good they are: they have no bigrams.
    """
    if len(answers) != len(references) or not answers:
        raise UnlimiformerError(f"{len(answers)} answers and {len(references)} references; expected as many, and some")
    scores = [scorer().score(reference, answer) for answer, reference in zip(answers, references, strict=True)]
    means = {kind: 100 * sum(score[kind].fmeasure for score in scores) / len(scores) for kind in KINDS}
    geometric = (means["rouge1"] * means["rouge2"] * means["rougeL"]) ** (1 / 3)
    return {**means, "rouge": geometric, "mean": sum(means.values()) / len(means)}
