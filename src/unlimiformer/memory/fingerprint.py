"""Digests that tell one model or tokenizer from all others. Every weight counts; each is digested once."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..adapters.base import holds_plain_numbers, present

_MODELS: WeakKeyDictionary[nn.Module, tuple[tuple, str]] = WeakKeyDictionary()
_TOKENIZERS: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()


def model_digest(config: Any, encoder: nn.Module) -> str:
    """Of a model's config and its encoder's weights, as they are now."""
    version = tuple(_version(parameter) for parameter in encoder.parameters())
    found = _MODELS.get(encoder)
    if found is None or found[0] != version:
        found = _MODELS[encoder] = (version, _digest_model(config, encoder))
    return found[1]


def tokenizer_digest(tokenizer: Any) -> str | None:
    """Of a tokenizer's vocabulary and rules; None if there is none."""
    if tokenizer is None:
        return None
    found = _TOKENIZERS.get(tokenizer)
    if found is None or found[0] != len(tokenizer):
        found = _TOKENIZERS[tokenizer] = (len(tokenizer), sha256(_rules(tokenizer).encode()).hexdigest())
    return found[1]


def _version(parameter: torch.Tensor) -> tuple:
    """Changes whenever a weight does. Torch does not count what is done to `.data`: some weights are looked at."""
    count = 0 if parameter.is_inference() else parameter._version
    if not holds_plain_numbers(parameter):
        return (count, tuple(parameter.shape))
    sample = parameter.detach().reshape(-1)[:: max(1, parameter.numel() // 1024)]
    return (parameter.data_ptr(), count, tuple(parameter.shape), float(sample.double().sum()))


def _digest_model(config: Any, encoder: nn.Module) -> str:
    digest = sha256()
    told = {k: v for k, v in config.to_dict().items() if not k.startswith("_") and k != "transformers_version"}
    digest.update(json.dumps(told, sort_keys=True, default=str).encode())
    for name, parameter in encoder.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        place, _, own = name.rpartition(".")
        owner = encoder.get_submodule(place)
        with present(owner):
            here = getattr(owner, own)
            if holds_plain_numbers(here):
                numbers = here.detach().cpu().contiguous().reshape(-1)
                digest.update(numbers.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _rules(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return json.dumps([type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())])
    rules = json.loads(backend.to_str())
    for changing in ("truncation", "padding"):  # these follow the arguments of the last call
        rules.pop(changing, None)
    return json.dumps(rules, sort_keys=True)
