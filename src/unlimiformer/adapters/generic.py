"""A guess at an unknown encoder–decoder from the names of its parts. Whoever uses it verifies it against the model."""

from __future__ import annotations

import inspect
from typing import Any

from .base import Adapter, CrossAttention

_MODULES = ("encoder_attn", "EncDecAttention", "cross_attn", "cross_attention", "crossattention.self")
_PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj", ("out_proj", "o_proj")),
    ("q", "k", "v", ("o",)),
    ("query", "key", "value", ("dense",)),
    ("query_proj", "key_proj", "value_proj", ("out_proj",)),
)
_HEADS = ("num_heads", "n_heads", "num_attention_heads", "num_attn_heads")
_STATES = ("key_value_states", "encoder_hidden_states")


class GenericAdapter(Adapter):
    """An adapter put together from what a decoder's modules are called."""

    default_window = 512

    def __init__(self, module_name: str, attention: type[CrossAttention]) -> None:
        self.module_name, self.attention = module_name, attention

    def attentions(self, model: Any) -> list[CrossAttention]:
        """All modules of the guessed name."""
        return [
            self.attention(module)
            for name, module in self.decoder(model).named_modules()
            if name.endswith(self.module_name)
        ]

    @classmethod
    def guess(cls, model: Any) -> GenericAdapter | None:
        """The first pattern that the decoder's modules fit, or None."""
        try:
            modules = list(model.get_decoder().named_modules())
        except (AttributeError, NotImplementedError):
            return None
        for module_name in _MODULES:
            for name, module in modules:
                if name.endswith(module_name) and (attention := _describe(module)) is not None:
                    return cls(module_name, attention)
        return None


def _describe(module: Any) -> type[CrossAttention] | None:
    """How a module would be read, or None where a part is missing."""
    heads = next((name for name in _HEADS if isinstance(getattr(module, name, None), int)), None)
    parameters = list(inspect.signature(module.forward).parameters)
    states = next((name for name in _STATES if name in parameters), None)
    for query, key, value, outputs in _PROJECTIONS:
        output = next((name for name in outputs if hasattr(module, name)), None)
        if heads and states and output and hasattr(module, query) and hasattr(module, key) and hasattr(module, value):
            names = {"query_name": query, "key_name": key, "value_name": value, "output_name": output}
            arguments = {"hidden_argument": (0, parameters[0]), "states_argument": (parameters.index(states), states)}
            return type("GuessedAttention", (_GuessedAttention,), {**names, **arguments, "heads_name": heads})
    return None


class _GuessedAttention(CrossAttention):
    def _head_width(self) -> int:
        return getattr(self.module, self.query_name).weight.shape[0] // self.heads
