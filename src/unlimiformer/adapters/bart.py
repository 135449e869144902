"""Adapters of BART and of families whose cross-attention is BART's with another module name or another argument."""

from __future__ import annotations

from torch import Tensor, nn

from .base import Adapter, Call, CrossAttention


class BartAdapter(Adapter):
    """bart, bigbird_pegasus, blenderbot, blenderbot-small, m2m_100, marian, mbart, pegasus, pegasus_x, plbart."""


class MvpAdapter(BartAdapter):
    """mvp; not with learned prompts, which are keys that no text token has."""

    def unsupported_reason(self, model: nn.Module) -> str | None:
        """Refuse models with prompts, as they add keys to every attention."""
        if getattr(model.config, "use_prompt", False):  # type: ignore[union-attr]
            return "its config has use_prompt=True, and prompts inside attention are not supported: load it without"
        return None


class _SeamlessAttention(CrossAttention):
    states_argument = (1, "encoder_hidden_states")


class SeamlessAdapter(Adapter):
    """seamless_m4t and seamless_m4t_v2, text to text."""

    cross_attention = _SeamlessAttention
    cross_attention_name = "cross_attention"


class NllbMoeAdapter(Adapter):
    """nllb-moe: BART's attention with mixture-of-experts feed-forward layers."""

    cross_attention_name = "cross_attention"


class _LedAttention(CrossAttention):
    def project_output(self, context: Tensor, log_sum: Tensor, call: Call) -> tuple:
        """Project the context; the third item of LED's output is the cache it was called with."""
        out, _ = super().project_output(context, log_sum, call)
        return out, None, call.get((2, "past_key_values"))


class LedAdapter(Adapter):
    """led: local attention in the encoder, BART's in the decoder."""

    cross_attention = _LedAttention
    window_names = ("max_encoder_position_embeddings",)


class _ProphetNetAttention(CrossAttention):
    query_name, key_name, value_name = "query_proj", "key_proj", "value_proj"
    heads_name = "num_attn_heads"

    def project_output(self, context: Tensor, log_sum: Tensor, call: Call) -> tuple:
        """Project the context and apply dropout to the result, as ProphetNet does."""
        out, weights = super().project_output(context, log_sum, call)
        return nn.functional.dropout(out, self.module.dropout, self.module.training), weights

    @property
    def dropout(self) -> float:
        """Dropout of the attention weights; the module's `dropout` is that of its output."""
        return self.module.attention_dropout if self.module.training else 0.0


class ProphetNetAdapter(Adapter):
    """prophetnet: n-gram self-attention in the decoder, ordinary cross-attention."""

    cross_attention = _ProphetNetAttention
    cross_attention_name = "cross_attn"


class _FsmtAttention(CrossAttention):
    hidden_argument = (0, "query")
    states_argument = (1, "key")
    batch_first = False

    def queries(self, call: Call) -> Tensor:
        """Project and scale queries, with the batch dimension first: FSMT's tensors are (T, B, D)."""
        return super().queries(call).transpose(0, 1)

    def project_output(self, context: Tensor, log_sum: Tensor, call: Call) -> tuple:
        """Project the context and transpose it back to (T, B, D)."""
        out, weights = super().project_output(context, log_sum, call)
        return out.transpose(0, 1), weights


class FsmtAdapter(Adapter):
    """fsmt: time dimension before batch dimension, and the mask as a positional argument."""

    cross_attention = _FsmtAttention
    mask_argument = (2, "encoder_padding_mask")
    decoder_states_argument = (1, "encoder_hidden_states")
