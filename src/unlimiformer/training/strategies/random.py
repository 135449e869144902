"""Random-encoded training: each layer attends to random tokens of the whole document."""

from __future__ import annotations

from dataclasses import replace

from ...engines.seq2seq.attention import RetrievalPolicy
from .base import Strategy


class Random(Strategy):
    """A cheap approximation of retrieval: `top_k` random tokens instead of the result of a search."""

    name = "random"

    def train_policy(self, layer: int, step: int) -> RetrievalPolicy:
        """Return a policy that draws new tokens for every layer and step."""
        return replace(self.eval_policy(layer), random=True)
