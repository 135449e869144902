"""Alternating training: batches take turns between random-encoded and retrieval training."""

from __future__ import annotations

from ...engines.seq2seq.attention import RetrievalPolicy
from .random import Random


class Alternating(Random):
    """Random-encoded training on even batches, retrieval training on odd ones.

    Retrieval matches the computation at test time. Random tokens also train attention to tokens outside the top k.
    """

    name = "alternating"

    def train_policy(self, layer: int, step: int) -> RetrievalPolicy:
        """Return the random policy for even steps and the evaluation policy for odd ones."""
        return super().train_policy(layer, step) if step % 2 == 0 else self.eval_policy(layer)
