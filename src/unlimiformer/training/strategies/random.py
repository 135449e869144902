"""Random-encoded training: each layer sees tokens of the whole document that were drawn by chance."""

from __future__ import annotations

from dataclasses import replace

from ...retrieval import Policy
from .base import Strategy


class Random(Strategy):
    """A cheap stand-in for retrieval: no search, and as many tokens."""

    name = "random"

    def trained(self, layer: int, step: int) -> Policy:
        """Drawn anew for every layer and step."""
        return replace(self.tested(layer), random=True)
