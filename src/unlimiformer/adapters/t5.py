"""Adapters of T5 and related families: unscaled scores, no position bias in cross-attention, heads of any width."""

from __future__ import annotations

from inspect import signature

from torch import Tensor

from .base import Adapter, Call, CrossAttention


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
    """t5 (flan-t5, byt5), mt5. Relative positions set no limit; T5 was trained on 512 tokens."""

    cross_attention = _T5Attention
    cross_attention_name = "EncDecAttention"
    default_window = 512


class _SwitchAttention(_T5Attention):
    def project_output(self, context: Tensor, log_sum: Tensor, call: Call) -> tuple:
        """As T5; but layers of older versions of transformers (5.5) expect no weights unless they are requested."""
        output = super().project_output(context, log_sum, call)
        is_older = "output_attentions" in signature(type(self.module).forward).parameters
        return output[:2] if is_older else output


class SwitchAdapter(T5Adapter):
    """switch_transformers: T5 with routed feed-forward layers."""

    cross_attention = _SwitchAttention


class LongT5Adapter(T5Adapter):
    """longt5: trained on 4,096 tokens."""

    default_window = 4096


class _Umt5Attention(_T5Attention):
    states_argument = (1, "encoder_hidden_states")
    output_items = 2


class Umt5Adapter(T5Adapter):
    """umt5: T5 with another signature of the attention."""

    cross_attention = _Umt5Attention
