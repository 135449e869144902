"""What a strategy answers: how much of a document one training step is given, and which stored tokens a layer sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from ...engines.seq2seq.attention import RetrievalPolicy


class Strategy:
    """Retrieval as at test time, and what other methods change of it.

    `sees_all`: whether a test is given all of a document if nobody says otherwise. `top_k`: tokens a head sees.
    """

    name: ClassVar[str]
    sees_all: ClassVar[bool] = True

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k

    def prepare(self, model: Any, cross_attentions: list[Any]) -> None:
        """Adds what a method learns beside the model's own weights."""

    def save(self, folder: Path) -> None:
        """Keeps that beside the model."""

    def settings(self) -> dict[str, Any]:
        """Those of a wrapper that sees what a test of this method sees."""
        return {"top_k": self.top_k}

    def inputs(self, ids: Tensor, room: int) -> list[Tensor]:
        """A document's tokens (S,) as the inputs of one or more examples, if the window has room for so many."""
        del room
        return [ids]

    def train_policy(self, layer: int, step: int) -> RetrievalPolicy:
        """What a layer of the decoder sees in a training step (a batch, counted from 0)."""
        del step
        return self.eval_policy(layer)

    def eval_policy(self, layer: int) -> RetrievalPolicy:
        """What it sees when the model is tested with unlimited input."""
        del layer
        return RetrievalPolicy(self.top_k)
