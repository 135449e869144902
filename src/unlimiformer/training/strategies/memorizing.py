"""The Memorizing Transformers baseline: one layer retrieves, all others attend to the first window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...engines.seq2seq.attention import RetrievalPolicy, memorizing_layer
from ...errors import InputError
from ...hub.saved_settings import GATE, load_gates, save_gate
from .base import Strategy

_INITIAL_GATE = 3.0  # sigmoid(3) = 0.95: a pretrained head starts with almost only its retrieved tokens


class Memorizing(Strategy):
    """Retrieval in a single layer.

    Parameters
    ----------
    layer : index of the retrieving layer, from 0; None selects the one two thirds of the way up.
    gated : whether each head of that layer learns a gate that mixes its retrieved tokens with the first window.
        Without a gate the layer sees only what it retrieves, as in the paper's approximation (g = 1).
    """

    name = "memorizing"

    def __init__(self, top_k: int, layer: int | None = None, gated: bool = False) -> None:
        super().__init__(top_k)
        self._layer, self._gated = layer, gated
        self._module: Any = None

    def prepare(self, model: Any, cross_attentions: list[Any]) -> None:
        """Select the retrieving layer and, if gated, add its gate: the saved one of the model, or a new one."""
        layers = len(cross_attentions)
        self._layer = memorizing_layer(layers) if self._layer is None else self._layer
        if not 0 <= self._layer < layers:
            raise InputError(f"the memorizing layer is {self._layer}; the decoder has {layers}, counted from 0")
        if not self._gated:
            return
        view = cross_attentions[self._layer]
        self._module = view.module
        folder = getattr(model.config, "_name_or_path", None)
        saved_gate = load_gates(folder, [attention.heads for attention in cross_attentions])[self._layer]
        gate = torch.full((view.heads,), _INITIAL_GATE) if saved_gate is None else saved_gate
        weight = next(view.module.parameters())
        view.module.register_parameter(GATE, torch.nn.Parameter(gate.to(weight)))

    def save(self, folder: Path) -> None:
        """Save the gate, if there is one; a wrapper loads it with the model of that folder."""
        if self._module is not None:
            assert self._layer is not None, "prepare() selects the layer"
            save_gate(getattr(self._module, GATE), self._layer, folder)

    def settings(self) -> dict[str, Any]:
        """Return wrapper settings in which only the selected layer retrieves."""
        return {"top_k": self.top_k, "layers": [self._layer]}

    def eval_policy(self, layer: int) -> RetrievalPolicy:
        """Retrieve in the selected layer, through its gate if it has one; other layers see the first window."""
        if layer != self._layer:
            return RetrievalPolicy(self.top_k, retrieves=False)
        return RetrievalPolicy(self.top_k, gate=None if self._module is None else getattr(self._module, GATE))
