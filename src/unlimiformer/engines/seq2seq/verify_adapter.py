"""Verify a guessed adapter against the model itself before it is used."""

from __future__ import annotations

from typing import Any

import torch

from ...adapters import Adapter
from ...adapters.base import input_device, module_dtype
from ...config import UnlimiformerConfig
from ...errors import UnsupportedModelError
from ...memory.indexer import EncoderInfo, Indexer
from .attention import RetrievalPolicy
from .context import AttentionContext
from .hooks import HookManager

_TOKENS = 24


@torch.no_grad()
def verify_guess(model: Any, adapter: Adapter, window: int) -> None:
    """Raise unless attention to all tokens through the adapter gives the unwrapped model's logits."""
    training = model.training
    model.eval()
    try:
        difference = _relative_difference(model, adapter, min(window, _TOKENS))
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} is of no known family, and a guess at it failed ({error}); "
            "see `unlimiformer families`"
        ) from error
    finally:
        model.train(training)
    if not difference <= (1e-3 if module_dtype(model) is torch.float32 else 5e-2):
        raise UnsupportedModelError(
            f"{type(model).__name__} is of no known family, and an adapter that was guessed for it did not reproduce "
            f"the model's logits (relative difference {difference:.1e}); see `unlimiformer families`"
        )


def _relative_difference(model: Any, adapter: Adapter, tokens: int) -> float:
    """Largest difference of the logits of two random rows, relative to the largest logit."""
    vocabulary_size = model.get_input_embeddings().num_embeddings
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary_size, (2, tokens), generator=generator).to(input_device(model))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :6]}
    expected = model(**inputs).logits
    hooks = HookManager(model, adapter, tokens)
    encoder = EncoderInfo(adapter.encoder(model), model.config, hooks.encode, tokens, vocabulary_size)
    policies = [RetrievalPolicy(tokens) for _ in hooks.attentions]
    try:
        hooks.install(AttentionContext(policies), Indexer(UnlimiformerConfig(), None, encoder), index_short_inputs=True)
        logits = model(**inputs).logits
    finally:
        hooks.remove()
    return float((logits - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
