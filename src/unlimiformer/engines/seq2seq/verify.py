"""Compares a guessed adapter with the model itself, before it is used: never silently wrong output."""

from __future__ import annotations

from typing import Any

import torch

from ...adapters import Adapter
from ...adapters.base import plain_device, plain_dtype
from ...config import UnlimiformerConfig
from ...errors import UnsupportedModelError
from ...memory.indexer import Indexer
from .attention import RetrievalPolicy
from .hooks import HookManager

_TOKENS = 24


@torch.no_grad()
def verify_guess(model: Any, adapter: Adapter, window: int) -> None:
    """Everything retrieved must equal the unwrapped model, whatever the settings that the user wants later."""
    training = model.training
    model.eval()
    try:
        difference = _difference(model, adapter, min(window, _TOKENS))
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} is of no known family, and a guess at it failed ({error}); "
            "see `unlimiformer families`"
        ) from error
    finally:
        model.train(training)
    if not difference <= (1e-3 if plain_dtype(model) is torch.float32 else 5e-2):
        raise UnsupportedModelError(
            f"{type(model).__name__} is of no known family, and a guess at it gave other results than the model "
            f"(relative difference {difference:.1e}); see `unlimiformer families`"
        )


def _difference(model: Any, adapter: Adapter, tokens: int) -> float:
    """Largest difference of the logits of two random rows, against the largest logit."""
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = torch.randint(vocabulary, (2, tokens), generator=torch.Generator().manual_seed(0)).to(plain_device(model))
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :6]}
    expected = model(**call).logits
    reader = Indexer(UnlimiformerConfig(), None, model.config, adapter.encoder(model), tokens, vocabulary)
    hooks = HookManager(model, adapter, reader.read_rows, tokens, always_read=lambda: True)
    try:
        hooks.apply([RetrievalPolicy(tokens) for _ in hooks.attentions])
        got = model(**call).logits
    finally:
        hooks.undo()
    return float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
