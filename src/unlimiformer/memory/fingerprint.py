"""Fingerprints that tell one model or tokenizer from another. Every weight counts; results are cached per object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..adapters.base import is_readable, materialized, module_dtype

_MODELS: WeakKeyDictionary[nn.Module, tuple[tuple, str]] = WeakKeyDictionary()
_TOKENIZERS: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()


def model_digest(config: Any, encoder: nn.Module) -> str:
    """Digest of a model's config and of its encoder's current weights."""
    version = tuple(_parameter_version(parameter) for parameter in encoder.parameters())
    cached = _MODELS.get(encoder)
    if cached is None or cached[0] != version:
        cached = _MODELS[encoder] = (version, _digest_model(config, encoder))
    return cached[1]


def tokenizer_digest(tokenizer: Any) -> str | None:
    """Digest of a tokenizer's vocabulary and rules; None without a tokenizer."""
    if tokenizer is None:
        return None
    cached = _TOKENIZERS.get(tokenizer)
    if cached is None or cached[0] != len(tokenizer):
        digest = sha256(_tokenizer_rules(tokenizer).encode()).hexdigest()
        cached = _TOKENIZERS[tokenizer] = (len(tokenizer), digest)
    return cached[1]


def _parameter_version(parameter: torch.Tensor) -> tuple:
    """A value that changes whenever a weight does. Torch does not count changes of `.data`, so some are sampled."""
    count = 0 if parameter.is_inference() else parameter._version
    if not is_readable(parameter):
        return (count, tuple(parameter.shape))
    sample = parameter.detach().reshape(-1)[:: max(1, parameter.numel() // 1024)]
    return (parameter.data_ptr(), count, tuple(parameter.shape), float(sample.double().sum()))


def is_same_checkpoint(digest: str, config: Any, encoder: nn.Module) -> bool:
    """Whether a digest is that of the same checkpoint, loaded in the other of bfloat16 and float32.

    A checkpoint in bfloat16 is loaded as float32 where the processor does not multiply bfloat16.
    """
    if not all(weight is not None and _is_bfloat16(weight) for weight in _weights(encoder)):
        return False
    other = torch.bfloat16 if module_dtype(encoder) == torch.float32 else torch.float32
    return digest == _digest_model(config, encoder, other)


def _digest_model(config: Any, encoder: nn.Module, dtype: torch.dtype | None = None) -> str:
    """Digest of a model, or of what it would be if its weights were loaded in another dtype."""
    digest = sha256()
    fields = {k: v for k, v in config.to_dict().items() if not k.startswith("_") and k != "transformers_version"}
    if dtype is not None and "dtype" in fields:
        fields["dtype"] = str(dtype).removeprefix("torch.")
    digest.update(json.dumps(fields, sort_keys=True, default=str).encode())
    for (name, parameter), weight in zip(encoder.named_parameters(), _weights(encoder), strict=True):
        digest.update(f"{name}{tuple(parameter.shape)}{dtype or parameter.dtype}".encode())
        if weight is not None:
            numbers = weight.to(dtype or weight.dtype).cpu().contiguous().reshape(-1)
            digest.update(numbers.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _weights(encoder: nn.Module) -> Iterator[torch.Tensor | None]:
    """Every weight, one at a time, also those that are offloaded; None for one that cannot be read."""
    for name, _ in encoder.named_parameters():
        module_name, _, parameter_name = name.rpartition(".")
        module = encoder.get_submodule(module_name)
        with materialized(module):
            weight = getattr(module, parameter_name)
            yield weight.detach() if is_readable(weight) else None


def _is_bfloat16(weight: torch.Tensor) -> bool:
    """Whether bfloat16 holds all numbers of a weight."""
    if weight.dtype == torch.float32:
        return torch.equal(weight.bfloat16().float(), weight)
    return weight.dtype == torch.bfloat16


def _tokenizer_rules(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return json.dumps([type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())])
    rules = json.loads(backend.to_str())
    for name in ("truncation", "padding"):  # these follow the arguments of the last call
        rules.pop(name, None)
    return json.dumps(rules, sort_keys=True)
