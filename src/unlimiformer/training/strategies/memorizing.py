"""Memorizing Transformers: one layer retrieves, all others see the first window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...engines.seq2seq.attention import RetrievalPolicy, memorizing_layer
from ...errors import UnlimiformerError
from ...hub.saved_settings import GATE, load_gate, save_gate
from .base import Strategy

_TRUSTING = 3.0  # a sigmoid's 0.95: pretrained heads begin with what they retrieve, as most learn to


class Memorizing(Strategy):
    """In the paper's approximation the layer sees only what it retrieves (g is 1).

    With `gated` each of its heads learns how far it trusts that, against what it sees of the first window.
    """

    name = "memorizing"

    def __init__(self, top_k: int, layer: int | None = None, gated: bool = False) -> None:
        super().__init__(top_k)
        self._layer, self._gated = layer, gated
        self._module: Any = None

    def prepare(self, model: Any, cross_attentions: list[Any]) -> None:
        """Finds the layer (two thirds of the way up, if none was named), and gives it a gate."""
        layers = len(cross_attentions)
        self._layer = memorizing_layer(layers) if self._layer is None else self._layer
        if not 0 <= self._layer < layers:
            raise UnlimiformerError(f"the memorizing layer is {self._layer}; the decoder has {layers}, counted from 0")
        if not self._gated:
            return
        view = cross_attentions[self._layer]
        self._module = view.module
        kept = load_gate(getattr(model.config, "_name_or_path", None), self._layer, view.heads)
        gate = torch.full((view.heads,), _TRUSTING) if kept is None else kept
        like = next(view.module.parameters())
        view.module.register_parameter(GATE, torch.nn.Parameter(gate.to(like)))

    def save(self, folder: Path) -> None:
        """The gate; a wrapper of the folder's model finds it there."""
        if self._module is not None:
            assert self._layer is not None, "it was prepared"
            save_gate(getattr(self._module, GATE), self._layer, folder)

    def settings(self) -> dict[str, Any]:
        """One layer retrieves."""
        return {"top_k": self.top_k, "layers": [self._layer]}

    def eval_policy(self, layer: int) -> RetrievalPolicy:
        """One layer retrieves."""
        if layer != self._layer:
            return RetrievalPolicy(self.top_k, retrieves=False)
        return RetrievalPolicy(self.top_k, gate=None if self._module is None else getattr(self._module, GATE))
