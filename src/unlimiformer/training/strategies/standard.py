"""Standard fine-tuning: documents are truncated to the model's window."""

from __future__ import annotations

from torch import Tensor

from .base import Strategy


class Standard(Strategy):
    """Fine-tuning on the beginning of each document, in training and in validation."""

    name = "standard"
    validates_on_full_input = False

    def inputs(self, ids: Tensor, room: int) -> list[Tensor]:
        """Keep the first `room` tokens."""
        return [ids[:room]]


class Truncate(Standard):
    """Standard fine-tuning under the name that the paper gives its first baseline."""

    name = "truncate"
