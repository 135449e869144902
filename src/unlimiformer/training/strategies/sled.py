"""The SLED baseline: the decoder attends to all tokens of all windows."""

from __future__ import annotations

from typing import Any

from ...engines.seq2seq.attention import EVERYTHING, RetrievalPolicy
from .base import Strategy


class Sled(Strategy):
    """Full cross-attention over windows that are encoded separately, each with the question in front of it."""

    name = "sled"

    def settings(self) -> dict[str, Any]:
        """Return wrapper settings without a limit on the retrieved tokens."""
        return {"top_k": EVERYTHING}

    def eval_policy(self, layer: int) -> RetrievalPolicy:
        """Attend to every token, in every layer."""
        del layer
        return RetrievalPolicy(EVERYTHING)
