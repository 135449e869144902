"""What is checked when a model is wrapped: sound weights and a fitting tokenizer."""

from __future__ import annotations

from typing import Any

import torch

from ..adapters.base import holds_plain_numbers
from ..errors import UnlimiformerError


def check_weights(model: Any) -> None:
    """Refuses weights that are not finite."""
    for name, parameter in model.named_parameters():
        if not holds_plain_numbers(parameter):
            continue
        if not torch.isfinite(parameter.detach().sum()) and not torch.isfinite(parameter.detach()).all():
            raise UnlimiformerError(f"the model's weight {name} has NaN or infinite numbers; load a sound checkpoint")


def check_tokenizer(tokenizer: Any, config: Any, vocabulary: int) -> None:
    """Refuses a tokenizer whose ids the model has no embeddings for, or whose special tokens are all other ones."""
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= vocabulary:
        raise UnlimiformerError(
            f"the tokenizer's ids go up to {highest} and the model has {vocabulary} embeddings; "
            "expected the model's own tokenizer"
        )
    names = ("pad_token_id", "eos_token_id", "bos_token_id")
    pairs = {name: (getattr(tokenizer, name, None), getattr(config, name, None)) for name in names}
    pairs = {name: pair for name, pair in pairs.items() if all(isinstance(one, int) for one in pair)}
    if pairs and all(ours != theirs for ours, theirs in pairs.values()):
        told = ", ".join(f"{name} {ours} and {theirs}" for name, (ours, theirs) in pairs.items())
        raise UnlimiformerError(
            f"tokenizer and model have other special tokens ({told}); expected the model's own tokenizer"
        )
