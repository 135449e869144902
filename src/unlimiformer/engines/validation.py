"""Checks when a model is wrapped: finite weights, and a tokenizer that belongs to the model."""

from __future__ import annotations

from typing import Any

import torch

from ..adapters.base import is_readable
from ..errors import InputError, UnsupportedModelError


def check_weights(model: Any) -> None:
    """Raise if a weight is NaN or infinite."""
    for name, parameter in model.named_parameters():
        if not is_readable(parameter):
            continue
        if not torch.isfinite(parameter.detach().sum()) and not torch.isfinite(parameter.detach()).all():
            raise UnsupportedModelError(
                f"the model's weight {name} has NaN or infinite numbers; load a sound checkpoint"
            )


def check_tokenizer(tokenizer: Any, config: Any, vocabulary_size: int) -> None:
    """Raise if the tokenizer has ids without embeddings, or none of the model's special tokens."""
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= vocabulary_size:
        raise InputError(
            f"the tokenizer's ids go up to {highest} and the model has {vocabulary_size} embeddings; "
            "expected the model's own tokenizer"
        )
    names = ("pad_token_id", "eos_token_id", "bos_token_id")
    pairs = {name: (getattr(tokenizer, name, None), getattr(config, name, None)) for name in names}
    pairs = {name: pair for name, pair in pairs.items() if all(isinstance(token_id, int) for token_id in pair)}
    if pairs and all(tokenizer_id != model_id for tokenizer_id, model_id in pairs.values()):
        differences = ", ".join(f"{name} {pair[0]} and {pair[1]}" for name, pair in pairs.items())
        raise InputError(
            f"tokenizer and model have different special tokens ({differences}); expected the model's own tokenizer"
        )
