"""The list of supported families and their adapters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import UnsupportedModelError
from .bart import BartAdapter, FsmtAdapter, LedAdapter, MvpAdapter, NllbMoeAdapter, ProphetNetAdapter, SeamlessAdapter
from .base import Adapter
from .causal import CausalAdapter, FalconAdapter, Gemma3Adapter, GptNeoXAdapter
from .encoder_decoder_model import EncoderDecoderAdapter
from .generic import GenericAdapter
from .t5 import LongT5Adapter, SwitchAdapter, T5Adapter, Umt5Adapter
from .t5gemma import T5Gemma2Adapter, T5GemmaAdapter

ADAPTERS: dict[str, type[Adapter]] = {
    "bart": BartAdapter,
    "bigbird_pegasus": BartAdapter,
    "blenderbot": BartAdapter,
    "blenderbot-small": BartAdapter,
    "encoder-decoder": EncoderDecoderAdapter,
    "fsmt": FsmtAdapter,
    "led": LedAdapter,
    "longt5": LongT5Adapter,
    "m2m_100": BartAdapter,
    "marian": BartAdapter,
    "mbart": BartAdapter,
    "mt5": T5Adapter,
    "mvp": MvpAdapter,
    "nllb-moe": NllbMoeAdapter,
    "pegasus": BartAdapter,
    "pegasus_x": BartAdapter,
    "plbart": BartAdapter,
    "prophetnet": ProphetNetAdapter,
    "seamless_m4t": SeamlessAdapter,
    "seamless_m4t_v2": SeamlessAdapter,
    "switch_transformers": SwitchAdapter,
    "t5": T5Adapter,
    "t5gemma": T5GemmaAdapter,
    "t5gemma2": T5Gemma2Adapter,
    "umt5": Umt5Adapter,
}


CAUSAL_ADAPTERS: dict[str, type[CausalAdapter]] = {
    "falcon": FalconAdapter,
    "gemma2": CausalAdapter,
    "gemma3_text": Gemma3Adapter,
    "gpt_neox": GptNeoXAdapter,
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


def families() -> list[dict[str, str]]:
    """List every supported family with its kind and status."""
    kinds: dict[str, Iterable[str]] = {"encoder–decoder": ADAPTERS, "decoder-only": CAUSAL_ADAPTERS}
    return [
        {"family": name, "kind": kind, "status": "supported"} for kind, names in kinds.items() for name in sorted(names)
    ]


def adapter_for(model: Any) -> tuple[Adapter, bool]:
    """Return the adapter of an encoder–decoder, and whether its family is known; a guessed one must be verified."""
    family = getattr(model.config, "model_type", None)
    if family in ADAPTERS:
        adapter = ADAPTERS[family]()
        if (reason := adapter.unsupported_reason(model)) is not None:
            raise UnsupportedModelError(f"{type(model).__name__} cannot be wrapped: {reason}")
        return adapter, True
    guessed = GenericAdapter.guess(model)
    if guessed is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} (family {family!r}) has no cross-attention of a known shape; "
            f"known families: {', '.join(sorted(ADAPTERS))}"
        )
    return guessed, False


def causal_adapter_for(model: Any) -> CausalAdapter:
    """Return the adapter of a decoder-only model; a family without one is refused."""
    family = getattr(model.config, "model_type", None)
    if family not in CAUSAL_ADAPTERS:
        raise UnsupportedModelError(
            f"{type(model).__name__} (family {family!r}) is a decoder-only model of no known family; expected one of: "
            f"{', '.join(sorted(CAUSAL_ADAPTERS))}, or an encoder–decoder"
        )
    return CAUSAL_ADAPTERS[family](model)
