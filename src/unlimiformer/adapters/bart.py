"""BART and the families whose cross-attention is a copy of its: they differ in the module's name and one argument."""

from __future__ import annotations

from torch import nn

from .base import Adapter, CrossAttention


class BartAdapter(Adapter):
    """bart, bigbird_pegasus, blenderbot, blenderbot-small, m2m_100, marian, mbart, pegasus, pegasus_x, plbart."""


class MvpAdapter(BartAdapter):
    """mvp; its learned prompts are keys that no text token has, so that a model which uses them is refused."""

    def refuse(self, model: nn.Module) -> str | None:
        """A prompt adds keys to every attention."""
        if getattr(model.config, "use_prompt", False):  # type: ignore[union-attr]
            return "its config has use_prompt=True, and prompts inside attention are not supported: load it without"
        return None


class _NamedStates(CrossAttention):
    states_argument = (1, "encoder_hidden_states")


class SeamlessAdapter(Adapter):
    """seamless_m4t and seamless_m4t_v2, text to text."""

    cross_attention = _NamedStates
    cross_attention_name = "cross_attention"


class NllbMoeAdapter(Adapter):
    """nllb-moe: BART's attention, routed feed-forward layers."""

    cross_attention_name = "cross_attention"


class _LedAttention(CrossAttention):
    def finish(self, context, log_sum, call):
        """LED passes its cache on as the third item."""
        out, _ = super().finish(context, log_sum, call)
        return out, None, call.get((2, "past_key_values"))


class LedAdapter(Adapter):
    """led: local attention in the encoder, BART's in the decoder."""

    cross_attention = _LedAttention
    window_names = ("max_encoder_position_embeddings",)


class _ProphetNetAttention(CrossAttention):
    query_name, key_name, value_name = "query_proj", "key_proj", "value_proj"
    heads_name = "num_attn_heads"

    def finish(self, context, log_sum, call):
        """ProphetNet drops out parts of the projected answer."""
        out, weights = super().finish(context, log_sum, call)
        return nn.functional.dropout(out, self.module.dropout, self.module.training), weights

    @property
    def dropout(self) -> float:
        """Of attention weights; the module's `dropout` is of its answer."""
        return self.module.attention_dropout if self.module.training else 0.0


class ProphetNetAdapter(Adapter):
    """prophetnet: n-gram self-attention in the decoder, ordinary cross-attention."""

    cross_attention = _ProphetNetAttention
    cross_attention_name = "cross_attn"


class _FsmtAttention(CrossAttention):
    hidden_argument = (0, "query")
    states_argument = (1, "key")
    batch_first = False

    def queries(self, call):
        """FSMT's tensors are (T, B, D)."""
        return super().queries(call).transpose(0, 1)

    def finish(self, context, log_sum, call):
        """Back to (T, B, D)."""
        out, weights = super().finish(context, log_sum, call)
        return out.transpose(0, 1), weights


class FsmtAdapter(Adapter):
    """fsmt: time before batch, and masks by position."""

    cross_attention = _FsmtAttention
    mask_argument = (2, "encoder_padding_mask")
    decoder_states_argument = (1, "encoder_hidden_states")
