"""F1 and exact match of short answers, as SCROLLS and SQuAD compute them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from .base import Metric

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Convert to lower case, and remove punctuation, articles and repeated spaces."""
    words = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", words).split())


def f1(answer: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall of the answer's words, after normalization."""
    answer_words, reference_words = normalize(answer).split(), normalize(reference).split()
    common = (Counter(answer_words) & Counter(reference_words)).total()
    return 2 * common / (len(answer_words) + len(reference_words)) if common else 0.0


def exact_match(answer: str, reference: str) -> float:
    """Return 1 if answer and reference are equal after normalization, else 0."""
    return float(normalize(answer) == normalize(reference))


def _best_scores(
    score: Callable[[str, str], float], answers: Sequence[str], references: Sequence[Sequence[str]]
) -> list[float]:
    return [
        100 * max(score(answer, reference) for reference in texts)
        for answer, texts in zip(answers, references, strict=True)
    ]


class F1(Metric):
    """F1 of the words that answer and reference have in common."""

    name, parts = "f1", ("f1",)

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """Return F1 in percent for every answer and its best reference."""
        return {"f1": _best_scores(f1, answers, references)}


class ExactMatch(Metric):
    """Whether the answer equals a reference, after normalization."""

    name, parts = "exact_match", ("exact_match",)

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """Return 100 for every answer that equals one of its references, else 0."""
        return {"exact_match": _best_scores(exact_match, answers, references)}
