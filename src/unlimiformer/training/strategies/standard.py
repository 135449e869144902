"""Standard fine-tuning: the model sees as much of a document as its window holds."""

from __future__ import annotations

from torch import Tensor

from .base import Strategy


class Standard(Strategy):
    """What does not fit the window is cut off."""

    name = "standard"
    sees_all = False

    def inputs(self, ids: Tensor, room: int) -> list[Tensor]:
        """The beginning."""
        return [ids[:room]]


class Truncate(Standard):
    """The paper's first baseline: the same, under the name it has there."""

    name = "truncate"
