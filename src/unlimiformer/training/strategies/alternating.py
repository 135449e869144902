"""Alternating training: a batch of random-encoded training, then one of retrieval training."""

from __future__ import annotations

from ...engines.seq2seq.attention import RetrievalPolicy
from .random import Random


class Alternating(Random):
    """Retrieval is what the test does; chance makes the model attend to tokens that are not among the best as well."""

    name = "alternating"

    def train_policy(self, layer: int, step: int) -> RetrievalPolicy:
        """By turns, random first."""
        return super().train_policy(layer, step) if step % 2 == 0 else self.eval_policy(layer)
