"""What is checked when a model is wrapped: sound weights, a fitting tokenizer, and a guess that holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .adapters.base import holds_plain_numbers, plain_dtype
from .errors import UnlimiformerError, UnsupportedModelError


def check_weights(model: Any) -> None:
    """Refuses weights that are not finite."""
    for name, parameter in model.named_parameters():
        if not holds_plain_numbers(parameter):
            continue
        if not torch.isfinite(parameter.detach().sum()) and not torch.isfinite(parameter.detach()).all():
            raise UnlimiformerError(f"the model's weight {name} has NaN or infinite numbers; load a sound checkpoint")


def check_tokenizer(tokenizer: Any, vocabulary: int) -> None:
    """Refuses a tokenizer whose ids the model has no embeddings for."""
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= vocabulary:
        raise UnlimiformerError(
            f"the tokenizer's ids go up to {highest} and the model has {vocabulary} embeddings; "
            "expected the model's own tokenizer"
        )


@torch.no_grad()
def verify_guess(model: Any, encoder_outputs: Callable[[Tensor], Any], tokens: int) -> None:
    """Compares a guessed adapter with the model itself: everything retrieved must equal full attention.

    `encoder_outputs` gives the placeholder for token ids (B, S).
    """
    name = type(model).__name__
    training = model.training
    model.eval()
    try:
        device = next(model.parameters()).device
        vocabulary = model.get_input_embeddings().num_embeddings
        ids = torch.randint(vocabulary, (2, tokens), generator=torch.Generator().manual_seed(0)).to(device)
        target = {"decoder_input_ids": ids[:, :6]}
        expected = model(input_ids=ids, attention_mask=torch.ones_like(ids), **target).logits
        mask = torch.ones((2, 1), dtype=torch.long, device=device)
        got = model(encoder_outputs=encoder_outputs(ids), attention_mask=mask, **target).logits
    except Exception as error:
        raise UnsupportedModelError(
            f"{name} is of no known family, and a guess at it failed ({error}); see `unlimiformer families`"
        ) from error
    finally:
        model.train(training)
    difference = float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
    if not difference <= (1e-3 if plain_dtype(model) is torch.float32 else 5e-2):
        raise UnsupportedModelError(
            f"{name} is of no known family, and a guess at it gave other results than the model "
            f"(relative difference {difference:.1e}); see `unlimiformer families`"
        )
