"""A guessed adapter for an unknown encoder–decoder, from the names of its modules. It must be verified before use."""

from __future__ import annotations

import inspect
from typing import Any

from .base import Adapter, CrossAttention

_MODULE_NAMES = ("encoder_attn", "EncDecAttention", "cross_attn", "cross_attention", "crossattention.self")
_PROJECTION_NAMES = (
    ("q_proj", "k_proj", "v_proj", ("out_proj", "o_proj")),
    ("q", "k", "v", ("o",)),
    ("query", "key", "value", ("dense",)),
    ("query_proj", "key_proj", "value_proj", ("out_proj",)),
)
_HEADS_NAMES = ("num_heads", "n_heads", "num_attention_heads", "num_attn_heads")
_STATES_NAMES = ("key_value_states", "encoder_hidden_states")


class GenericAdapter(Adapter):
    """An adapter derived from the names of a decoder's modules.

    Parameters
    ----------
    module_name : how the names of the cross-attention modules end.
    attention : the class that describes them.
    """

    default_window = 512

    def __init__(self, module_name: str, attention: type[CrossAttention]) -> None:
        self.module_name, self.attention = module_name, attention

    def attentions(self, model: Any) -> list[CrossAttention]:
        """List all modules with the guessed name."""
        return [
            self.attention(module)
            for name, module in self.decoder(model).named_modules()
            if name.endswith(self.module_name)
        ]

    @classmethod
    def guess(cls, model: Any) -> GenericAdapter | None:
        """Build an adapter from the first known pattern that a module of the decoder matches; None if none does."""
        try:
            modules = list(model.get_decoder().named_modules())
        except (AttributeError, NotImplementedError):
            return None
        for module_name in _MODULE_NAMES:
            for name, module in modules:
                if name.endswith(module_name) and (attention := _guess_attention(module)) is not None:
                    return cls(module_name, attention)
        return None


def _guess_attention(module: Any) -> type[CrossAttention] | None:
    """Create a class that describes a cross-attention module, or return None if a part is missing."""
    heads = next((name for name in _HEADS_NAMES if isinstance(getattr(module, name, None), int)), None)
    parameters = list(inspect.signature(module.forward).parameters)
    states = next((name for name in _STATES_NAMES if name in parameters), None)
    for query, key, value, outputs in _PROJECTION_NAMES:
        output = next((name for name in outputs if hasattr(module, name)), None)
        if heads and states and output and hasattr(module, query) and hasattr(module, key) and hasattr(module, value):
            names = {"query_name": query, "key_name": key, "value_name": value, "output_name": output}
            arguments = {"hidden_argument": (0, parameters[0]), "states_argument": (parameters.index(states), states)}
            return type("GuessedAttention", (_GuessedAttention,), {**names, **arguments, "heads_name": heads})
    return None


class _GuessedAttention(CrossAttention):
    def _head_width(self) -> int:
        return getattr(self.module, self.query_name).weight.shape[0] // self.heads
