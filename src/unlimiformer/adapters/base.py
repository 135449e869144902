"""What the library must know of a family of models: where its encoder, decoder and cross-attentions are, and how one
cross-attention makes queries, keys, values and its answer. Knows nothing of stores, windows or hooks.

Shapes: B rows, T target tokens, H heads, G key-value heads, D width of a state, d of a head.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModelError
from .linear import effective_weight

Argument = tuple[int, str]
"""Position and name of a forward's argument."""


@dataclass(frozen=True)
class Call:
    """One call of a cross-attention's forward, as the model made it."""

    args: tuple
    kwargs: dict[str, Any]

    def get(self, argument: Argument, default: Any = None) -> Any:
        """The argument's value, given by position or by name."""
        position, name = argument
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


class CrossAttention:
    """One cross-attention module, read with its family's names; subclasses say what differs."""

    query_name: ClassVar[str] = "q_proj"
    key_name: ClassVar[str] = "k_proj"
    value_name: ClassVar[str] = "v_proj"
    output_name: ClassVar[str] = "out_proj"
    heads_name: ClassVar[str] = "num_heads"
    head_width_name: ClassVar[str] = "head_dim"
    hidden_argument: ClassVar[Argument] = (0, "hidden_states")
    states_argument: ClassVar[Argument] = (1, "key_value_states")
    returned: ClassVar[int] = 2
    batch_first: ClassVar[bool] = True

    def __init__(self, module: Any) -> None:
        self.module = module
        self.heads = self._heads()
        self.groups = self._groups()
        self.head_width = self._head_width()
        self._weights: dict[str, tuple[Tensor, Tensor | None] | None] = {}

    def _heads(self) -> int:
        return getattr(self.module, self.heads_name)

    def _head_width(self) -> int:
        return getattr(self.module, self.head_width_name)

    def _groups(self) -> int:
        """Key-value heads; fewer than heads where they are shared."""
        return self.heads

    @property
    def scaling(self) -> float:
        """Factor of the scores."""
        return getattr(self.module, "scaling", self.head_width**-0.5)

    @property
    def softcap(self) -> float | None:
        """Bound of the scores, where the family has one."""
        return None

    @property
    def dropout(self) -> float:
        """Share of attention weights dropped in training."""
        value = getattr(self.module, "dropout", 0.0)
        return float(getattr(value, "p", value)) if self.module.training else 0.0

    def queries(self, call: Call) -> Tensor:
        """Scaled queries (B, T, H, d), by the module's own projection."""
        projected = getattr(self.module, self.query_name)(call.get(self.hidden_argument))
        return projected.unflatten(-1, (self.heads, self.head_width)) * self.scaling

    def keys(self, states: Tensor) -> Tensor:
        """Keys (n, G, d) of states (n, D), by the module's own projection."""
        return self._split(getattr(self.module, self.key_name)(states))

    def values(self, states: Tensor) -> Tensor:
        """Values (n, G, d) of states (n, D), by the module's own projection."""
        return self._split(getattr(self.module, self.value_name)(states))

    def key_weight(self, width: int, like: Tensor) -> Tensor | None:
        """Key projection (G, d, D) in float32, or None where keys are no linear image of the states."""
        found = self._weight(self.key_name, width, like)
        return None if found is None else found[0].unflatten(0, (self.groups, self.head_width))

    def value_weight(self, width: int, like: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """Value projection (G, d, D) and bias (G, d) in float32, or None where values are not linear."""
        found = self._weight(self.value_name, width, like)
        if found is None:
            return None
        weight, bias = found
        return weight.unflatten(0, (self.groups, self.head_width)), None if bias is None else self._split(bias)

    def finish(self, context: Tensor, log_sum: Tensor, call: Call) -> tuple:
        """What the module's forward returns for a context (B, T, H, d); `log_sum` (B, T, H) is of its scores."""
        out = getattr(self.module, self.output_name)(context.flatten(-2))
        return (out, *(None,) * (self.returned - 1))

    def forget(self) -> None:
        """Drops weights derived from the module: they may have changed since."""
        self._weights = {}

    def _weight(self, name: str, width: int, like: Tensor) -> tuple[Tensor, Tensor | None] | None:
        weights = self._weights  # another thread may replace the dict, never change what is in it
        if name not in weights:
            weights[name] = effective_weight(getattr(self.module, name), width, like)
        return weights[name]

    def _split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (self.groups, self.head_width))


class Adapter:
    """One family of encoder–decoders: where things are. Subclasses change what differs."""

    cross_attention: ClassVar[type[CrossAttention]] = CrossAttention
    cross_attention_name: ClassVar[str] = "encoder_attn"
    mask_argument: ClassVar[Argument] = (10**6, "encoder_attention_mask")
    decoder_states_argument: ClassVar[Argument] = (10**6, "encoder_hidden_states")
    window_names: ClassVar[tuple[str, ...]] = ("max_position_embeddings", "n_positions")
    default_window: ClassVar[int | None] = None

    def refuse(self, model: nn.Module) -> str | None:
        """Why this very model cannot be served, or None."""
        return None

    def encoder(self, model: Any) -> Any:
        """The module that reads token ids."""
        return model.get_encoder()

    def decoder(self, model: Any) -> Any:
        """The module that is given the encoder's states."""
        return model.get_decoder()

    def attentions(self, model: nn.Module) -> list[CrossAttention]:
        """The decoder's cross-attentions, first layer first."""
        found = [
            self.cross_attention(module)
            for name, module in self.decoder(model).named_modules()
            if name.endswith(self.cross_attention_name) and not name.startswith("_")
        ]
        if not found:
            raise UnsupportedModelError(
                f"{type(model).__name__} has no module named {self.cross_attention_name!r} in its decoder; "
                "expected cross-attention: give an encoder–decoder model"
            )
        return found

    def states_projection(self, model: nn.Module) -> nn.Module | None:
        """A layer between the encoder's output and the decoder, where there is one."""
        return None

    def window(self, model: Any, tokenizer: Any = None) -> int:
        """How many tokens the encoder reads at once."""
        config = getattr(self.encoder(model), "config", model.config)
        for name in self.window_names:
            if isinstance(value := getattr(config, name, None), int) and value > 0:
                return value
        limit = getattr(tokenizer, "model_max_length", None)
        if isinstance(limit, int) and 0 < limit < 10**6:
            return limit
        if self.default_window is None:
            raise UnsupportedModelError(
                f"{type(model).__name__} does not say how many tokens it reads at once: give window=…"
            )
        return self.default_window


def holds_plain_numbers(parameter: Tensor) -> bool:
    """Whether a parameter's own numbers can be read: not quantised, not offloaded."""
    return type(parameter.data) is Tensor and parameter.is_floating_point() and parameter.device.type != "meta"


def plain_dtype(module: nn.Module) -> torch.dtype:
    """The floating dtype in which a module computes."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def plain_device(module: nn.Module) -> torch.device:
    """Where a module takes its input; where its weights are offloaded, that is where accelerate brings them."""
    device = next(module.parameters()).device
    if device.type != "meta":
        return device
    hooks = (getattr(part, "_hf_hook", None) for part in module.modules())
    places = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((place for place in places if place is not None), "cpu"))


def present(module: nn.Module) -> AbstractContextManager[None]:
    """A module's own weights, for a while, where they are offloaded."""
    if not any(parameter.device.type == "meta" for parameter in module.parameters(recurse=False)):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module)
