"""The contract of a decoder-only family: where its self-attentions are, how one computes queries, keys and values, and
how these are rotated. Knows nothing of memories, blocks or prompts.

Shapes: B batch, n tokens, H heads, G key-value heads, D width of a layer's input, d width of a head, r rotated numbers
of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import UnsupportedModelError
from ..functional import rotate
from .base import input_device, module_dtype

_RECORDING = "unlimiformer-record-projections"
_recorded: list[tuple[Tensor, Tensor, Tensor]] = []


@dataclass(frozen=True)
class Projected:
    """Queries (B, H, n, d), keys and values (B, G, n, d), before any rotation."""

    queries: Tensor
    keys: Tensor
    values: Tensor


class SelfAttention:
    """A view of one self-attention module; subclasses override what differs in their family.

    Parameters
    ----------
    module : the self-attention module.
    layer : its layer, counted from 0.
    rotary : the model's rotary embedding.
    device : device of the module's input.
    """

    def __init__(self, module: nn.Module, layer: int, rotary: nn.Module, device: torch.device) -> None:
        self.module, self.layer, self._rotary = module, layer, rotary
        self.config: Any = module.config
        sample = self.project(torch.zeros((1, 1, self.width), device=device, dtype=module_dtype(module)))
        _, self.heads, _, self.head_width = sample.queries.shape
        self.groups = sample.keys.shape[1]

    @property
    def width(self) -> int:
        """Width of the layer's input."""
        return self.config.hidden_size

    @property
    def scaling(self) -> float:
        """Factor that scores are multiplied with."""
        return getattr(self.module, "scaling", None) or self.head_width**-0.5

    @property
    def sliding_window(self) -> int | None:
        """How many tokens back the layer attends to; None: all."""
        types = getattr(self.config, "layer_types", None)
        if types is not None and types[self.layer] != "sliding_attention":
            return None
        return getattr(self.config, "sliding_window", None)

    @property
    def uses_rotation(self) -> bool:
        """Whether the layer has rotary positions."""
        return bool(getattr(self.module, "use_rope", True))

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Compute cosines and sines (n, r) of positions (n,), in float32."""
        placeholder = torch.zeros(1, device=positions.device)  # the module uses only its device and dtype
        cos, sin = self._rotary(placeholder, positions[None], *self._rotary_arguments())
        return cos[0].float(), sin[0].float()

    def _rotary_arguments(self) -> tuple[str, ...]:
        """Further arguments of the model's rotary embedding."""
        return ()

    def rotate(self, states: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys (..., n, d) to positions (n,)."""
        return rotate(states, *self.rotation(positions)) if self.uses_rotation else states

    def project(self, inputs: Tensor) -> Projected:
        """Project inputs (B, n, D) as the module itself does, with norms and biases."""
        positions = torch.zeros(inputs.shape[1], device=inputs.device)
        cos, sin = self.rotation(positions)
        no_rotation = (torch.ones_like(cos)[None].to(inputs), torch.zeros_like(sin)[None].to(inputs))
        with attention_function(self.config, _RECORDING):
            self.module(hidden_states=inputs, position_embeddings=no_rotation, attention_mask=None)
        return Projected(*_recorded.pop())


class Gemma3Attention(SelfAttention):
    """Two types of layers, each with a rotary embedding of its own."""

    def _rotary_arguments(self) -> tuple[str, ...]:
        return (self.config.layer_types[self.layer],)


class FalconAttention(SelfAttention):
    """Calls torch's attention directly, so that the projections cannot be recorded."""

    def project(self, inputs: Tensor) -> Projected:
        """Project inputs (B, n, D) with the module's fused projection and its own way of splitting it."""
        module: Any = self.module
        parts = module._split_heads(module.query_key_value(inputs))
        return Projected(*(part.transpose(1, 2) for part in parts))


class CausalAdapter:
    """A view of one decoder-only model; subclasses override what differs in their family.

    Attributes
    ----------
    attention : the class that describes a self-attention module.
    layers_name : name of the backbone's list of layers.
    attention_name : name of a layer's self-attention.
    """

    attention: ClassVar[type[SelfAttention]] = SelfAttention
    layers_name: ClassVar[str] = "layers"
    attention_name: ClassVar[str] = "self_attn"

    def __init__(self, model: Any) -> None:
        self.check_supported(model)
        self.model, self.backbone = model, model.base_model
        self.device, self.dtype = input_device(model), module_dtype(model)
        layers = getattr(self.backbone, self.layers_name)
        modules = [getattr(layer, self.attention_name) for layer in layers]
        rotary = self.backbone.rotary_emb
        self.attentions = [self.attention(module, i, rotary, input_device(module)) for i, module in enumerate(modules)]

    @property
    def max_positions(self) -> int:
        """Number of positions of the model."""
        return self.model.config.get_text_config().max_position_embeddings

    def softcap(self) -> float | None:
        """Return the bound of the scores, if the family has one."""
        return getattr(self.model.config.get_text_config(), "attn_logit_softcapping", None)

    def check_supported(self, model: Any) -> None:
        """Raise for variants whose keys cannot be stored."""
        config = model.config.get_text_config()
        rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        if rope_type in ("dynamic", "longrope"):
            raise UnsupportedModelError(
                f"{type(model).__name__} has positions of type {rope_type!r}, in which a token's key depends on the "
                "length of the whole input and cannot be stored; expected a model with fixed positions "
                "(default, linear, llama3 or yarn)"
            )

    def top_k_unsupported_reason(self) -> str | None:
        """Return why each head of this model cannot attend to its own top-k tokens; None if it can."""
        windows = [view.sliding_window for view in self.attentions]
        if any(window is not None and window < self.max_positions for window in windows):
            return "has layers that see a sliding window only"
        return None

    def inputs(self, ids: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
        """Compute the self-attention inputs (B, n, D) of some layers for ids (B, n). Later layers do not run."""
        inputs: dict[int, Tensor] = {}
        last = max(layers)

        def make_hook(layer: int) -> Any:
            def hook(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
                inputs[layer] = args[0] if args else kwargs["hidden_states"]
                if layer == last:
                    raise _StopForward

            return hook

        handles = [
            self.attentions[layer].module.register_forward_pre_hook(make_hook(layer), with_kwargs=True)
            for layer in layers
        ]
        try:
            self.backbone(ids.to(self.device), use_cache=False)
        except _StopForward:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return inputs


class _StopForward(Exception):
    """Ends a forward pass when all requested inputs are recorded."""


class GptNeoXAdapter(CausalAdapter):
    """gpt_neox: the attention is called `attention`."""

    attention_name = "attention"


class FalconAdapter(CausalAdapter):
    """falcon, with rotary positions: with ALiBi, keys have no positions that could be changed."""

    attention = FalconAttention
    layers_name, attention_name = "h", "self_attention"

    def top_k_unsupported_reason(self) -> str | None:
        """Refuse: Falcon does not use the registry of attention functions."""
        return "computes its attention by itself"

    def check_supported(self, model: Any) -> None:
        """Raise for ALiBi as well."""
        if model.config.alibi:
            raise UnsupportedModelError(
                f"{type(model).__name__} has ALiBi positions, which are not supported; expected rotary ones"
            )
        super().check_supported(model)


class Gemma3Adapter(CausalAdapter):
    """gemma3_text: two types of layers with different rotary embeddings."""

    attention = Gemma3Attention


@contextmanager
def attention_function(config: Any, name: str) -> Iterator[None]:
    """Make a model's attentions use the registered attention function of this name."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def _record(_: nn.Module, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> tuple[Tensor, None]:
    """Attention function that records its arguments and returns zeros."""
    _recorded.append((query, key, value))
    return torch.zeros_like(query).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(_RECORDING, _record)
