"""What the library must know of a family of decoder-only models: where its self-attentions are, how one makes queries,
keys and values, and how these are rotated. Knows nothing of memories, blocks or prompts.

Shapes: B rows, n tokens, H heads, G key-value heads, D width of a layer's input, d of a head, r of what is rotated.
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
from .base import plain_device, plain_dtype

NOTING = "unlimiformer-noting"
_noted: list[tuple[Tensor, Tensor, Tensor]] = []


@dataclass(frozen=True)
class Projected:
    """Queries (B, H, n, d), keys and values (B, G, n, d) of some tokens, before any rotation."""

    queries: Tensor
    keys: Tensor
    values: Tensor


class SelfAttention:
    """One self-attention module, counted from 0; subclasses say what differs."""

    def __init__(self, module: nn.Module, layer: int, rotary: nn.Module, device: torch.device) -> None:
        self.module, self.layer, self._rotary = module, layer, rotary
        self.config: Any = module.config
        sample = self.project(torch.zeros((1, 1, self.width), device=device, dtype=plain_dtype(module)))
        _, self.heads, _, self.head_width = sample.queries.shape
        self.groups = sample.keys.shape[1]

    @property
    def width(self) -> int:
        """Numbers in a layer's input."""
        return self.config.hidden_size

    @property
    def scaling(self) -> float:
        """Factor of the scores."""
        return getattr(self.module, "scaling", None) or self.head_width**-0.5

    @property
    def sliding(self) -> int | None:
        """How many tokens back the layer sees; None: all."""
        kinds = getattr(self.config, "layer_types", None)
        if kinds is not None and kinds[self.layer] != "sliding_attention":
            return None
        return getattr(self.config, "sliding_window", None)

    @property
    def rotates(self) -> bool:
        """Whether the layer knows positions at all."""
        return bool(getattr(self.module, "use_rope", True))

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (n, r) of positions (n,), in float32."""
        anything = torch.zeros(1, device=positions.device)
        cos, sin = self._rotary(anything, positions[None], *self._kind())
        return cos[0].float(), sin[0].float()

    def _kind(self) -> tuple[str, ...]:
        """What the model's positions ask beside the positions."""
        return ()

    def rotate(self, states: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys (..., n, d) as they are at positions (n,)."""
        return rotate(states, *self.rotation(positions)) if self.rotates else states

    def project(self, inputs: Tensor) -> Projected:
        """Queries, keys and values of inputs (B, n, D), as the module itself makes them, with norms and biases."""
        positions = torch.zeros(inputs.shape[1], device=inputs.device)
        cos, sin = self.rotation(positions)
        nowhere = (torch.ones_like(cos)[None].to(inputs), torch.zeros_like(sin)[None].to(inputs))
        with attention_function(self.config, NOTING):
            self.module(hidden_states=inputs, position_embeddings=nowhere, attention_mask=None)
        return Projected(*_noted.pop())


class GemmaThreeAttention(SelfAttention):
    """Two kinds of layers, each with positions of its own."""

    def _kind(self) -> tuple[str, ...]:
        return (self.config.layer_types[self.layer],)


class FalconAttention(SelfAttention):
    """Calls torch's attention itself, so that its projections are made here."""

    def project(self, inputs: Tensor) -> Projected:
        """By the module's own splitting of its fused projection."""
        module: Any = self.module
        parts = module._split_heads(module.query_key_value(inputs))
        return Projected(*(part.transpose(1, 2) for part in parts))


class CausalAdapter:
    """One decoder-only model, read with its family's names."""

    attention: ClassVar[type[SelfAttention]] = SelfAttention
    layers_name: ClassVar[str] = "layers"
    attention_name: ClassVar[str] = "self_attn"

    def __init__(self, model: Any) -> None:
        self.refuse(model)
        self.model, self.backbone = model, model.base_model
        self.device, self.dtype = plain_device(model), plain_dtype(model)
        layers = getattr(self.backbone, self.layers_name)
        modules = [getattr(layer, self.attention_name) for layer in layers]
        rotary = self.backbone.rotary_emb
        self.attentions = [self.attention(module, i, rotary, plain_device(module)) for i, module in enumerate(modules)]

    @property
    def limit(self) -> int:
        """Tokens that the model was made for."""
        return self.model.config.get_text_config().max_position_embeddings

    def softcap(self) -> float | None:
        """Bound of the scores, where the family has one."""
        return getattr(self.model.config.get_text_config(), "attn_logit_softcapping", None)

    def refuse(self, model: Any) -> None:
        """Raises for variants whose positions cannot be kept."""
        config = model.config.get_text_config()
        kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        if kind in ("dynamic", "longrope"):
            raise UnsupportedModelError(
                f"{type(model).__name__} has positions of type {kind!r}, in which a token's key depends on the length "
                "of the whole input, so that it cannot be kept; expected a model with fixed positions "
                "(default, linear, llama3 or yarn)"
            )

    def refuse_own_tokens(self) -> str | None:
        """Why the heads of this model cannot each see tokens of their own, or None."""
        if any(view.sliding is not None and view.sliding < self.limit for view in self.attentions):
            return "has layers that see a sliding window only"
        return None

    def inputs(self, ids: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
        """What the self-attentions of some layers are given for ids (B, n): (B, n, D) each. Later layers do not run."""
        found: dict[int, Tensor] = {}
        last = max(layers)

        def note(layer: int) -> Any:
            def hook(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
                found[layer] = args[0] if args else kwargs["hidden_states"]
                if layer == last:
                    raise _Enough

            return hook

        handles = [
            self.attentions[layer].module.register_forward_pre_hook(note(layer), with_kwargs=True) for layer in layers
        ]
        try:
            self.backbone(ids.to(self.device), use_cache=False)
        except _Enough:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return found


class _Enough(Exception):
    """Ends a forward of which all that was wanted is known."""


class GptNeoX(CausalAdapter):
    """`attention` instead of `self_attn`."""

    attention_name = "attention"


class Falcon(CausalAdapter):
    """`h` instead of `layers`, `self_attention`; those with ALiBi have no positions that a key could be given."""

    attention = FalconAttention
    layers_name, attention_name = "h", "self_attention"

    def refuse_own_tokens(self) -> str | None:
        """It does not go through the registry of attention functions."""
        return "computes its attention by itself"

    def refuse(self, model: Any) -> None:
        """Raises for ALiBi as well."""
        if model.config.alibi:
            raise UnsupportedModelError(
                f"{type(model).__name__} has ALiBi positions, which are not supported; expected rotary ones"
            )
        super().refuse(model)


class GemmaThree(CausalAdapter):
    """Text only: two kinds of positions."""

    attention = GemmaThreeAttention


DECODERS: dict[str, type[CausalAdapter]] = {
    "falcon": Falcon,
    "gemma2": CausalAdapter,
    "gemma3_text": GemmaThree,
    "gpt_neox": GptNeoX,
    "granite": CausalAdapter,
    "llama": CausalAdapter,
    "mistral": CausalAdapter,
    "olmo2": CausalAdapter,
    "phi3": CausalAdapter,
    "qwen2": CausalAdapter,
    "qwen3": CausalAdapter,
    "smollm3": CausalAdapter,
    "stablelm": CausalAdapter,
}


def causal_adapter_for(model: Any) -> CausalAdapter:
    """How a decoder-only model is read; a family that nobody has checked is refused."""
    family = getattr(model.config, "model_type", None)
    if family not in DECODERS:
        raise UnsupportedModelError(
            f"{type(model).__name__} (family {family!r}) is a decoder-only model of no known family; expected one of: "
            f"{', '.join(sorted(DECODERS))}, or an encoder–decoder"
        )
    return DECODERS[family](model)


@contextmanager
def attention_function(config: Any, name: str) -> Iterator[None]:
    """Lets a model's attentions go through a function of this name."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def _note(_: nn.Module, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> tuple[Tensor, None]:
    _noted.append((query, key, value))
    return torch.zeros_like(query).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(NOTING, _note)
