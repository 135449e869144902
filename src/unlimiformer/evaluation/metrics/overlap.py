"""F1 and exact match of short answers, as SCROLLS (and SQuAD) compute them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from .base import Metric

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """In small letters, without punctuation and articles, with single spaces."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def f1(answer: str, reference: str) -> float:
    """The harmonic mean of the shares of words that answer and reference have in common."""
    said, right = normalised(answer).split(), normalised(reference).split()
    common = (Counter(said) & Counter(right)).total()
    return 2 * common / (len(said) + len(right)) if common else 0.0


def exact(answer: str, reference: str) -> float:
    """1 if they are the same, normalised."""
    return float(normalised(answer) == normalised(reference))


def _best(
    score: Callable[[str, str], float], answers: Sequence[str], references: Sequence[Sequence[str]]
) -> list[float]:
    return [
        100 * max(score(answer, reference) for reference in right)
        for answer, right in zip(answers, references, strict=True)
    ]


class F1(Metric):
    """Words in common."""

    name, parts = "f1", ("f1",)

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """The best over the references."""
        return {"f1": _best(f1, answers, references)}


class ExactMatch(Metric):
    """The same or not."""

    name, parts = "exact_match", ("exact_match",)

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """The best over the references."""
        return {"exact_match": _best(exact, answers, references)}
