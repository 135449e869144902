"""Tiny random decoder-only models of every family, created from their configs, without a model hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

VOCABULARY = 97
LIMIT = 512
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": LIMIT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _create(name: str, config: str | None = None, **extra: Any) -> Any:
    settings = getattr(hf, f"{config or name}Config")(**{**_COMMON, **extra})
    return getattr(hf, f"{name}ForCausalLM")(settings)


_GROUPED = {"num_key_value_heads": 1}
_SLIDING = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}

DECODERS: dict[str, Callable[[], Any]] = {
    "falcon": lambda: _create("Falcon", alibi=False, multi_query=True, new_decoder_architecture=False),
    "gemma2": lambda: _create("Gemma2", head_dim=12, query_pre_attn_scalar=12, num_key_value_heads=2, **_SLIDING),
    "gemma3_text": lambda: _create(
        "Gemma3", config="Gemma3Text", head_dim=12, query_pre_attn_scalar=12, num_key_value_heads=2, **_SLIDING
    ),
    "gpt_neox": lambda: _create("GPTNeoX", rotary_pct=0.5),
    "granite": lambda: _create("Granite", attention_multiplier=0.3, **_GROUPED),
    "llama": lambda: _create("Llama", num_key_value_heads=2),
    "mistral": lambda: _create("Mistral", **_GROUPED, sliding_window=None),
    "olmo2": lambda: _create("Olmo2", num_key_value_heads=4),
    "phi3": lambda: _create("Phi3", **_GROUPED, sliding_window=None),
    "qwen2": lambda: _create("Qwen2", **_GROUPED),
    "qwen3": lambda: _create("Qwen3", head_dim=12, **_GROUPED),
    "smollm3": lambda: _create("SmolLM3", **_GROUPED, no_rope_layers=[1, 0, 1]),
    "stablelm": lambda: _create("StableLm", **_GROUPED, partial_rotary_factor=0.5, qk_layernorm=True),
}

VARIANTS: dict[str, Callable[[], Any]] = {
    "falcon, grouped": lambda: _create("Falcon", alibi=False, new_decoder_architecture=True, num_kv_heads=2),
    "llama, scaled positions": lambda: _create(
        "Llama",
        **_GROUPED,
        rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64},
    ),
    "llama, tied": lambda: _create("Llama", **_GROUPED, tie_word_embeddings=True),
    "mistral, sliding": lambda: _create("Mistral", **_GROUPED, sliding_window=24),
    "llama, all heads": lambda: _create("Llama", num_key_value_heads=4),
}


def tiny_decoder(name: str) -> Any:
    """Create a model with weights large enough that positions and tokens matter."""
    torch.manual_seed(0)
    model = (DECODERS | VARIANTS)[name]().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    model.generation_config.eos_token_id = None  # outputs have the requested length
    model.generation_config.pad_token_id = 0
    return model


def one_head_matches() -> Any:
    """Create a llama whose head 2 of layer 0 attends to equal tokens: its keys equal its queries, almost unrotated."""
    torch.manual_seed(0)
    model = _create(
        "Llama", num_key_value_heads=4, head_dim=32, rope_parameters={"rope_type": "default", "rope_theta": 1e30}
    )
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        shared = torch.zeros(32, 32)
        shared[1:16, :15], shared[17:, 15:30] = torch.eye(15), torch.eye(15)  # all but the pair that rotates fastest
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight[64:96] = 2 * shared
    return model.eval()
