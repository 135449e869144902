"""What a metric is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar


class Metric(ABC):
    """Scores of answers; `parts` are the names of what it measures."""

    name: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]

    @abstractmethod
    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """For each part the score of every answer, in percent: the best over its references. NaN: it has none."""
