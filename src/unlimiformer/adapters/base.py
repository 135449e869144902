"""The contract of an encoder–decoder family: where its encoder, decoder and cross-attentions are, and how one
cross-attention computes queries, keys, values and its output. Knows nothing of stores, windows or hooks.

Shapes: B batch, T target tokens, H heads, G key-value heads, D width of a state, d width of a head.
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
"""Position and name of an argument of a forward method."""
_KEYWORD_ONLY = 10**6  # a position that no argument has
_MAX_TOKENIZER_LIMIT = 10**6  # tokenizers without a limit report a huge number


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a cross-attention's forward."""

    args: tuple
    kwargs: dict[str, Any]

    def get(self, argument: Argument, default: Any = None) -> Any:
        """Return the value of an argument that was passed by position or by name."""
        position, name = argument
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


class CrossAttention:
    """A view of one cross-attention module; subclasses override what differs in their family.

    Attributes
    ----------
    query_name, key_name, value_name, output_name : names of the module's projections.
    heads_name, head_width_name : names of the module's attributes for H and d.
    hidden_argument, states_argument : arguments of forward with the decoder's and the encoder's states.
    output_items : length of the tuple that forward returns.
    batch_first : whether the batch is the first dimension of the arguments.
    """

    query_name: ClassVar[str] = "q_proj"
    key_name: ClassVar[str] = "k_proj"
    value_name: ClassVar[str] = "v_proj"
    output_name: ClassVar[str] = "out_proj"
    heads_name: ClassVar[str] = "num_heads"
    head_width_name: ClassVar[str] = "head_dim"
    hidden_argument: ClassVar[Argument] = (0, "hidden_states")
    states_argument: ClassVar[Argument] = (1, "key_value_states")
    output_items: ClassVar[int] = 2
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
        """Number of key-value heads; fewer than heads if they are shared."""
        return self.heads

    @property
    def scaling(self) -> float:
        """Factor that queries are multiplied with."""
        return getattr(self.module, "scaling", self.head_width**-0.5)

    @property
    def states_width(self) -> int | None:
        """Numbers of a state that keys are projected from; None if the projection does not say."""
        return getattr(getattr(self.module, self.key_name, None), "in_features", None)

    @property
    def softcap(self) -> float | None:
        """Bound of the scores, if the family has one."""
        return None

    @property
    def dropout(self) -> float:
        """Dropout of the attention weights in training."""
        value = getattr(self.module, "dropout", 0.0)
        return float(getattr(value, "p", value)) if self.module.training else 0.0

    def queries(self, call: Call) -> Tensor:
        """Project and scale queries (B, T, H, d) with the module's projection."""
        projected = getattr(self.module, self.query_name)(call.get(self.hidden_argument))
        return projected.unflatten(-1, (self.heads, self.head_width)) * self.scaling

    def keys(self, states: Tensor) -> Tensor:
        """Project states (n, D) to keys (n, G, d) with the module's projection."""
        return self._split(getattr(self.module, self.key_name)(states))

    def values(self, states: Tensor) -> Tensor:
        """Project states (n, D) to values (n, G, d) with the module's projection."""
        return self._split(getattr(self.module, self.value_name)(states))

    def key_weight(self, width: int, like: Tensor) -> Tensor | None:
        """Return the key projection (G, d, D) in float32; None if keys are not linear in the states.

        Parameters
        ----------
        width : D
        like : a tensor with the device and dtype of the states.
        """
        projection = self._weight(self.key_name, width, like)
        if projection is None:
            return None
        weight, _ = projection
        return weight.unflatten(0, (self.groups, self.head_width))

    def value_weight(self, width: int, like: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """Return the value projection (G, d, D) and bias (G, d) in float32; None if values are not linear."""
        projection = self._weight(self.value_name, width, like)
        if projection is None:
            return None
        weight, bias = projection
        return weight.unflatten(0, (self.groups, self.head_width)), None if bias is None else self._split(bias)

    def project_output(self, context: Tensor, log_sum: Tensor, call: Call) -> tuple:
        """Compute what the module's forward returns.

        Parameters
        ----------
        context : (B, T, H, d)
        log_sum : log-sum-exp of the scores (B, T, H).
        call : the arguments that forward was called with.
        """
        out = getattr(self.module, self.output_name)(context.flatten(-2))
        return (out, *(None,) * (self.output_items - 1))

    def clear_cached_weights(self) -> None:
        """Drop the cached weights, as the module's parameters may have changed."""
        self._weights = {}

    def _weight(self, name: str, width: int, like: Tensor) -> tuple[Tensor, Tensor | None] | None:
        weights = self._weights  # another thread may replace this dict, but never changes an entry
        if name not in weights:
            weights[name] = effective_weight(getattr(self.module, name), width, like)
        return weights[name]

    def _split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (self.groups, self.head_width))


class Adapter:
    """One family of encoder–decoders; subclasses override what differs.

    Attributes
    ----------
    cross_attention : the class that describes a cross-attention module.
    cross_attention_name : how the names of these modules end.
    mask_argument, decoder_states_argument : arguments of the decoder's forward with the encoder's mask and states.
    window_names : attributes of the encoder's config with its position limit.
    default_window : window of a family without such a limit.
    """

    cross_attention: ClassVar[type[CrossAttention]] = CrossAttention
    cross_attention_name: ClassVar[str] = "encoder_attn"
    mask_argument: ClassVar[Argument] = (_KEYWORD_ONLY, "encoder_attention_mask")
    decoder_states_argument: ClassVar[Argument] = (_KEYWORD_ONLY, "encoder_hidden_states")
    window_names: ClassVar[tuple[str, ...]] = ("max_position_embeddings", "n_positions")
    default_window: ClassVar[int | None] = None

    def unsupported_reason(self, model: nn.Module) -> str | None:
        """Return why this model of the family cannot be wrapped; None if it can."""
        return None

    def encoder(self, model: Any) -> Any:
        """Return the module that encodes token ids."""
        return model.get_encoder()

    def decoder(self, model: Any) -> Any:
        """Return the module that receives the encoder's states."""
        return model.get_decoder()

    def attentions(self, model: nn.Module) -> list[CrossAttention]:
        """List the decoder's cross-attentions, first layer first."""
        attentions = [
            self.cross_attention(module)
            for name, module in self.decoder(model).named_modules()
            if name.endswith(self.cross_attention_name) and not name.startswith("_")
        ]
        if not attentions:
            raise UnsupportedModelError(
                f"{type(model).__name__} has no module named {self.cross_attention_name!r} in its decoder; "
                "expected cross-attention: give an encoder–decoder model"
            )
        return attentions

    def states_projection(self, model: nn.Module) -> nn.Module | None:
        """Return the layer between the encoder's output and the decoder, if there is one."""
        return None

    def window(self, model: Any, tokenizer: Any = None) -> int:
        """Return how many tokens the encoder can encode at once."""
        config = getattr(self.encoder(model), "config", model.config)
        for name in self.window_names:
            if isinstance(value := getattr(config, name, None), int) and value > 0:
                return value
        limit = getattr(tokenizer, "model_max_length", None)
        if isinstance(limit, int) and 0 < limit < _MAX_TOKENIZER_LIMIT:
            return limit
        if self.default_window is None:
            raise UnsupportedModelError(
                f"neither the config of {type(model).__name__} nor its tokenizer says how many tokens it can encode at "
                "once: give window=…"
            )
        return self.default_window


def is_readable(parameter: Tensor) -> bool:
    """Whether a parameter's values can be read directly: not quantised, not offloaded."""
    return type(parameter.data) is Tensor and parameter.is_floating_point() and parameter.device.type != "meta"


def module_dtype(module: nn.Module) -> torch.dtype:
    """Return the floating-point dtype in which a module computes."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def input_device(module: nn.Module) -> torch.device:
    """Return the device of a module's input; for offloaded weights, the one that accelerate moves them to."""
    device = next(module.parameters()).device
    if device.type != "meta":
        return device
    hooks = (getattr(part, "_hf_hook", None) for part in module.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((device for device in devices if device is not None), "cpu"))


def materialized(module: nn.Module) -> AbstractContextManager[None]:
    """Load a module's own parameters temporarily if they are offloaded."""
    if not any(parameter.device.type == "meta" for parameter in module.parameters(recurse=False)):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module)
