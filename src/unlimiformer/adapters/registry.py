"""Which family is read by which adapter: the one list from which support is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import UnsupportedModelError
from .bart import BartAdapter, FsmtAdapter, LedAdapter, MvpAdapter, NllbMoeAdapter, ProphetNetAdapter, SeamlessAdapter
from .base import Adapter
from .causal import DECODERS
from .encoder_decoder import EncoderDecoderAdapter
from .generic import GenericAdapter
from .t5 import LongT5Adapter, T5Adapter, Umt5Adapter
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
    "switch_transformers": T5Adapter,
    "t5": T5Adapter,
    "t5gemma": T5GemmaAdapter,
    "t5gemma2": T5Gemma2Adapter,
    "umt5": Umt5Adapter,
}


def families() -> list[dict[str, str]]:
    """Every known family with its kind and status."""
    kinds: dict[str, Iterable[str]] = {"encoder–decoder": ADAPTERS, "decoder-only": DECODERS}
    return [
        {"family": name, "kind": kind, "status": "supported"} for kind, known in kinds.items() for name in sorted(known)
    ]


def adapter_for(model: Any) -> tuple[Adapter, bool]:
    """The adapter of an encoder–decoder, and whether its family is known; else it must be verified before use."""
    family = getattr(model.config, "model_type", None)
    known = f"known families: {', '.join(sorted(ADAPTERS))}"
    if family in ADAPTERS:
        adapter = ADAPTERS[family]()
        if (reason := adapter.refuse(model)) is not None:
            raise UnsupportedModelError(f"{type(model).__name__} cannot be wrapped: {reason}")
        return adapter, True
    found = GenericAdapter.guess(model)
    if found is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} (family {family!r}) has no cross-attention of a known shape; {known}"
        )
    return found, False
