"""Random-encoded training: each layer sees tokens of the whole document that were drawn by chance."""

from __future__ import annotations

from dataclasses import replace

from ...engines.seq2seq.attention import RetrievalPolicy
from .base import Strategy


class Random(Strategy):
    """A cheap stand-in for retrieval: no search, and as many tokens."""

    name = "random"

    def train_policy(self, layer: int, step: int) -> RetrievalPolicy:
        """Drawn anew for every layer and step."""
        return replace(self.eval_policy(layer), random=True)
