"""The base class of metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar


class Metric(ABC):
    """A metric of answers against references; `parts` names the scores that it returns."""

    name: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]

    @abstractmethod
    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
        """Score every answer against its best reference.

        Returns, for each part, one score per answer in percent; NaN where the metric does not apply.
        """
