"""Adapters of T5 and related families: unscaled scores, no position bias in cross-attention, heads of any width."""

from __future__ import annotations

from .base import Adapter, CrossAttention


class _T5Attention(CrossAttention):
    query_name, key_name, value_name, output_name = "q", "k", "v", "o"
    heads_name, head_width_name = "n_heads", "key_value_proj_dim"
    states_argument = (2, "key_value_states")
    output_items = 3

    @property
    def scaling(self) -> float:
        """Factor of the scores: T5 does not scale them; the initialisation of its weights makes up for it."""
        return getattr(self.module, "scaling", 1.0)


class T5Adapter(Adapter):
    """t5 (flan-t5, byt5), mt5, switch_transformers. Relative positions set no limit; T5 was trained on 512 tokens."""

    cross_attention = _T5Attention
    cross_attention_name = "EncDecAttention"
    default_window = 512


class LongT5Adapter(T5Adapter):
    """longt5: trained on 4,096 tokens."""

    default_window = 4096


class _Umt5Attention(_T5Attention):
    states_argument = (1, "encoder_hidden_states")
    output_items = 2


class Umt5Adapter(T5Adapter):
    """umt5: T5 with another signature of the attention."""

    cross_attention = _Umt5Attention
