"""SLED: the decoder attends to all tokens of all windows."""

from __future__ import annotations

from typing import Any

from ...engines.seq2seq.attention import EVERYTHING, RetrievalPolicy
from .base import Strategy


class Sled(Strategy):
    """Full cross-attention over windows that were encoded one by one; the question stands before each."""

    name = "sled"

    def settings(self) -> dict[str, Any]:
        """No token is left out."""
        return {"top_k": EVERYTHING}

    def eval_policy(self, layer: int) -> RetrievalPolicy:
        """No token is left out."""
        del layer
        return RetrievalPolicy(EVERYTHING)
