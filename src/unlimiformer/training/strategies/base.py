"""The strategy interface: how much of a document an example holds, and which stored tokens each layer attends to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from ...engines.seq2seq.attention import RetrievalPolicy


class Strategy:
    """Base class of the training methods. Its defaults are retrieval in training exactly as at test time.

    Parameters
    ----------
    top_k : number of stored tokens each attention head retrieves.
    layers, heads : decoder layers and heads that retrieve; None for all. The others attend to the first window.

    Attributes
    ----------
    name : the method's name in settings and recipes.
    validates_on_full_input : whether validation uses whole documents unless the settings say otherwise.
    limits_source : whether documents longer than the settings' limit are truncated in training.
    question_place : where questions are put in training; None for where they are at test time.
    """

    name: ClassVar[str]
    validates_on_full_input: ClassVar[bool] = True
    limits_source: ClassVar[bool] = True
    question_place: ClassVar[str | None] = None

    def __init__(self, top_k: int, layers: tuple[int, ...] | None = None, heads: tuple[int, ...] | None = None) -> None:
        self.top_k, self.layers, self.heads = top_k, layers, heads

    def prepare(self, model: Any, cross_attentions: list[Any]) -> None:
        """Add the parameters that this method trains in addition to the model's weights. The default adds none."""

    def save(self, folder: Path) -> None:
        """Save those additional parameters next to the model in `folder`. The default saves nothing."""

    def settings(self) -> dict[str, Any]:
        """Return the wrapper settings with which a model trained by this method is used."""
        return {"top_k": self.top_k, "layers": self.layers, "heads": self.heads}

    def inputs(self, ids: Tensor, room: int) -> list[Tensor]:
        """Split a document's token ids (S,) into the inputs of one or more examples.

        `room` is the number of document tokens that fit into one window.
        """
        del room
        return [ids]

    def train_policy(self, layer: int, step: int) -> RetrievalPolicy:
        """Return what a decoder layer attends to in a training step; `step` counts batches from 0."""
        del step
        return self.eval_policy(layer)

    def eval_policy(self, layer: int) -> RetrievalPolicy:
        """Return what a decoder layer attends to in evaluation with unlimited input."""
        return RetrievalPolicy(self.top_k, self.layers is None or layer in self.layers, self.heads)
