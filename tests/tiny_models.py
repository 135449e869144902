"""Tiny random encoder–decoder models of every family, created from their configs, without a model hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

VOCABULARY = 97
WINDOW = 32
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def _bart_like(config: str, model: str, **extra: Any) -> Any:
    settings = {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": WINDOW,
        "forced_eos_token_id": None,
        **_SPECIAL,
        **extra,
    }
    return getattr(hf, model)(getattr(hf, config)(**settings))


def _t5_like(config: str, model: str, **extra: Any) -> Any:
    settings = {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "d_kv": 12,
        "d_ff": 48,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "n_positions": WINDOW,
        **_SPECIAL,
        **extra,
    }
    return getattr(hf, model)(getattr(hf, config)(**settings))


def _encoder_decoder(decoder: str = "bert", decoder_width: int = 32) -> Any:
    bert = {
        "vocab_size": VOCABULARY,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": WINDOW,
    }
    encoder_config = hf.BertConfig(hidden_size=32, **bert)
    if decoder == "gpt2":
        decoder_config: Any = hf.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=decoder_width,
            n_layer=2,
            n_head=4,
            n_positions=WINDOW,
            is_decoder=True,
            add_cross_attention=True,
        )
    else:
        decoder_config = hf.BertConfig(hidden_size=decoder_width, is_decoder=True, add_cross_attention=True, **bert)
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(encoder_config, decoder_config)
    for name, value in _SPECIAL.items():
        setattr(config, name, value)
    return hf.EncoderDecoderModel(config)


def _fsmt() -> Any:
    config = hf.FSMTConfig(
        langs=["en", "de"],
        src_vocab_size=VOCABULARY,
        tgt_vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=WINDOW,
        max_length=32,
        num_beams=1,
        forced_eos_token_id=None,
        **_SPECIAL,
    )
    return hf.FSMTForConditionalGeneration(config)


def _led() -> Any:
    return _bart_like(
        "LEDConfig",
        "LEDForConditionalGeneration",
        attention_window=[8, 8],
        max_encoder_position_embeddings=WINDOW,
        max_decoder_position_embeddings=WINDOW,
    )


def _prophetnet() -> Any:
    config = hf.ProphetNetConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        max_position_embeddings=WINDOW,
        ngram=2,
        num_buckets=8,
        relative_max_distance=16,
        disable_ngram_loss=True,
        **_SPECIAL,
    )
    return hf.ProphetNetForConditionalGeneration(config)


def _seamless(version: str) -> Any:
    config = getattr(hf, f"SeamlessM4T{version}Config")(
        vocab_size=VOCABULARY,
        hidden_size=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=WINDOW,
        speech_encoder_layers=1,
        t2u_encoder_layers=1,
        t2u_decoder_layers=1,
        **_SPECIAL,
    )
    return getattr(hf, f"SeamlessM4T{version}ForTextToText")(config)


def _gemma_text() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": WINDOW,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 12,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _t5gemma() -> Any:
    part = {**_gemma_text(), "attn_logit_softcapping": 2.0}
    config = hf.T5GemmaConfig(
        encoder=part, decoder=part, vocab_size=VOCABULARY, attn_implementation="eager", **_SPECIAL
    )
    return hf.T5GemmaForConditionalGeneration(config)


def _t5gemma2() -> Any:
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    encoder = {"text_config": _gemma_text(), "vision_config": vision, "mm_tokens_per_image": 4}
    config = hf.T5Gemma2Config(encoder=encoder, decoder=_gemma_text(), image_token_index=VOCABULARY - 1, **_SPECIAL)
    return hf.T5Gemma2ForConditionalGeneration(config)


BUILDERS: dict[str, Callable[[], Any]] = {
    "bart": lambda: _bart_like("BartConfig", "BartForConditionalGeneration"),
    "bigbird_pegasus": lambda: _bart_like(
        "BigBirdPegasusConfig", "BigBirdPegasusForConditionalGeneration", attention_type="original_full"
    ),
    "blenderbot": lambda: _bart_like("BlenderbotConfig", "BlenderbotForConditionalGeneration"),
    "blenderbot-small": lambda: _bart_like("BlenderbotSmallConfig", "BlenderbotSmallForConditionalGeneration"),
    "encoder-decoder": _encoder_decoder,
    "fsmt": _fsmt,
    "led": _led,
    "longt5": lambda: _t5_like("LongT5Config", "LongT5ForConditionalGeneration", local_radius=7),
    "m2m_100": lambda: _bart_like("M2M100Config", "M2M100ForConditionalGeneration"),
    "marian": lambda: _bart_like("MarianConfig", "MarianMTModel"),
    "mbart": lambda: _bart_like("MBartConfig", "MBartForConditionalGeneration"),
    "mt5": lambda: _t5_like("MT5Config", "MT5ForConditionalGeneration"),
    "mvp": lambda: _bart_like("MvpConfig", "MvpForConditionalGeneration"),
    "nllb-moe": lambda: _bart_like(
        "NllbMoeConfig",
        "NllbMoeForConditionalGeneration",
        num_experts=4,
        encoder_sparse_step=2,
        decoder_sparse_step=2,
        expert_capacity=64,
    ),
    "pegasus": lambda: _bart_like("PegasusConfig", "PegasusForConditionalGeneration"),
    "pegasus_x": lambda: _bart_like(
        "PegasusXConfig", "PegasusXForConditionalGeneration", num_global_tokens=4, block_size=8
    ),
    "plbart": lambda: _bart_like("PLBartConfig", "PLBartForConditionalGeneration"),
    "prophetnet": _prophetnet,
    "seamless_m4t": lambda: _seamless(""),
    "seamless_m4t_v2": lambda: _seamless("v2"),
    "switch_transformers": lambda: _t5_like(
        "SwitchTransformersConfig",
        "SwitchTransformersForConditionalGeneration",
        num_experts=4,
        expert_capacity=512,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        router_jitter_noise=0.0,
    ),
    "t5": lambda: _t5_like("T5Config", "T5ForConditionalGeneration"),
    "t5gemma": _t5gemma,
    "t5gemma2": _t5gemma2,
    "umt5": lambda: _t5_like("UMT5Config", "UMT5ForConditionalGeneration"),
}
VARIANTS: dict[str, Callable[[], Any]] = {
    "bert to gpt2": lambda: _encoder_decoder("gpt2"),
    "bert to narrow bert": lambda: _encoder_decoder("bert", 16),
    "t5, gated and tied": lambda: _t5_like("T5Config", "T5ForConditionalGeneration", feed_forward_proj="gated-gelu"),
    "longt5, transient global": lambda: _t5_like(
        "LongT5Config", "LongT5ForConditionalGeneration", local_radius=7, encoder_attention_type="transient-global"
    ),
}


def make(name: str, seed: int = 0) -> Any:
    """Create a model in evaluation mode with weights large enough that attention matters, and no forced end token."""
    torch.manual_seed(seed)
    model = {**BUILDERS, **VARIANTS}[name]().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
            elif "norm" not in parameter_name.lower():
                parameter.normal_(0, 0.1)
    model.generation_config.forced_eos_token_id = None
    return model


def random_ids(*shape: int, seed: int = 1) -> torch.Tensor:
    """Draw random token ids, none of them special."""
    return torch.randint(3, VOCABULARY - 2, shape, generator=torch.Generator().manual_seed(seed))


def long_input(length: int) -> dict[str, torch.Tensor]:
    """Random token ids (1, length) and their mask, as a tokenizer returns them."""
    ids = random_ids(1, length)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
