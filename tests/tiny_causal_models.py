"""Tiny random decoder-only models of every family, made from their configs: offline, in milliseconds."""

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


def _made(name: str, config: str | None = None, **extra: Any) -> Any:
    settings = getattr(hf, f"{config or name}Config")(**{**_COMMON, **extra})
    return getattr(hf, f"{name}ForCausalLM")(settings)


_GROUPED = {"num_key_value_heads": 1}
_SLIDING = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}

DECODERS: dict[str, Callable[[], Any]] = {
    "falcon": lambda: _made("Falcon", alibi=False, multi_query=True, new_decoder_architecture=False),
    "gemma2": lambda: _made("Gemma2", head_dim=12, query_pre_attn_scalar=12, num_key_value_heads=2, **_SLIDING),
    "gemma3_text": lambda: _made(
        "Gemma3", config="Gemma3Text", head_dim=12, query_pre_attn_scalar=12, num_key_value_heads=2, **_SLIDING
    ),
    "gpt_neox": lambda: _made("GPTNeoX", rotary_pct=0.5),
    "granite": lambda: _made("Granite", attention_multiplier=0.3, **_GROUPED),
    "llama": lambda: _made("Llama", num_key_value_heads=2),
    "mistral": lambda: _made("Mistral", **_GROUPED, sliding_window=None),
    "olmo2": lambda: _made("Olmo2", num_key_value_heads=4),
    "phi3": lambda: _made("Phi3", **_GROUPED, sliding_window=None),
    "qwen2": lambda: _made("Qwen2", **_GROUPED),
    "qwen3": lambda: _made("Qwen3", head_dim=12, **_GROUPED),
    "smollm3": lambda: _made("SmolLM3", **_GROUPED, no_rope_layers=[1, 0, 1]),
    "stablelm": lambda: _made("StableLm", **_GROUPED, partial_rotary_factor=0.5, qk_layernorm=True),
}

VARIANTS: dict[str, Callable[[], Any]] = {
    "falcon, grouped": lambda: _made("Falcon", alibi=False, new_decoder_architecture=True, num_kv_heads=2),
    "llama, scaled positions": lambda: _made(
        "Llama",
        **_GROUPED,
        rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64},
    ),
    "llama, tied": lambda: _made("Llama", **_GROUPED, tie_word_embeddings=True),
    "mistral, sliding": lambda: _made("Mistral", **_GROUPED, sliding_window=24),
    "llama, all heads": lambda: _made("Llama", num_key_value_heads=4),
}


def tiny_decoder(name: str) -> Any:
    """A model with weights large enough to tell positions and tokens apart."""
    torch.manual_seed(0)
    model = (DECODERS | VARIANTS)[name]().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    model.generation_config.eos_token_id = None  # lengths are as asked for
    model.generation_config.pad_token_id = 0
    return model


def one_head_matches() -> Any:
    """A llama whose head 2 of layer 0 finds the tokens that it is given: keys are queries, and hardly turn."""
    torch.manual_seed(0)
    model = _made(
        "Llama", num_key_value_heads=4, head_dim=32, rope_parameters={"rope_type": "default", "rope_theta": 1e30}
    )
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        shared = torch.zeros(32, 32)
        shared[1:16, :15], shared[17:, 15:30] = torch.eye(15), torch.eye(15)  # all but the fastest pair of numbers
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight[64:96] = 2 * shared
    return model.eval()
