"""Alternating training: a batch of random-encoded training, then one of retrieval training."""

from __future__ import annotations

from ...retrieval import Policy
from .random import Random


class Alternating(Random):
    """Retrieval is what the test does; chance makes the model attend to tokens that are not among the best as well."""

    name = "alternating"

    def trained(self, layer: int, step: int) -> Policy:
        """By turns, random first."""
        return super().trained(layer, step) if step % 2 == 0 else self.tested(layer)
