"""The models, text and settings of the memories in `tests/data/memories_v2`, which an earlier version wrote.

A memory names digests of its model and tokenizer, so the models are built from whole numbers: every processor and every
version of transformers gives the same ones.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import transformers as hf

FOLDER = Path(__file__).parent / "data" / "memories_v2"
TEXT = " ".join(f"w{(i * i + 7 * i) % 94}" for i in range(180))
PROMPT = "w3 w4"
GENERATION = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "num_beams": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "encoder-decoder-exact": {"window": 32, "top_k": 9, "dtype": "int8"},
    "encoder-decoder-ivf": {"window": 32, "top_k": 9, "dtype": "float32", "store": "cells", "recall": 0.99},
    "encoder-decoder-partial": {"window": 32, "top_k": 9, "dtype": "int8"},
    "decoder-only": {"window": 64, "top_k": 16, "block": 8},
}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BART = {
    "vocab_size": 97,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 32,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 2,
    **_SPECIAL,
}
_LLAMA = {
    "vocab_size": 97,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    **_SPECIAL,
}


class _BartConfig(hf.BartConfig):
    """A config whose dictionary, of which a memory has a digest, has no fields that transformers may add one day."""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name in _BART}


class _LlamaConfig(hf.LlamaConfig):
    """As above. All four heads score blocks, so that no ranking of heads decides what a row of a memory holds."""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name in _LLAMA}


def build_model(name: str) -> Any:
    """Create the model of a stored memory."""
    if name == "decoder-only":
        model = hf.LlamaForCausalLM(_LlamaConfig(**_LLAMA)).eval()
    else:
        model = hf.BartForConditionalGeneration(_BartConfig(**_BART)).eval()
    numbers = random.Random(11)  # Python's generator and whole numbers: the same weights everywhere
    with torch.no_grad():
        for parameter_name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1 or "norm" not in parameter_name.lower():
                values = [int(numbers.random() * 17 - 8) / 16 for _ in range(parameter.numel())]
                parameter.copy_(torch.tensor(values).reshape(parameter.shape))
    model.generation_config.forced_eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model
