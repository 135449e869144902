"""Adapter of EncoderDecoderModel: any encoder with a decoder that has BERT's or GPT-2's cross-attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..errors import UnsupportedModelError
from .base import Adapter, Call, CrossAttention


class _BertAttention(CrossAttention):
    """BERT and related models: the output projection is outside this module."""

    query_name, key_name, value_name = "query", "key", "value"
    heads_name, head_width_name = "num_attention_heads", "attention_head_size"
    states_argument = (1, "encoder_hidden_states")

    def project_output(self, context: Tensor, log_sum: Tensor, call: Call) -> tuple:
        """Return the context without a projection."""
        return context.flatten(-2), None


class _Gpt2Attention(CrossAttention):
    """GPT-2: one layer projects keys and values, and dropout is applied to the output."""

    query_name, output_name = "q_attn", "c_proj"
    states_argument = (3, "encoder_hidden_states")

    def _key_value(self, states: Tensor) -> tuple[Tensor, ...]:
        return self.module.c_attn(states).split(self.module.split_size, dim=-1)

    def keys(self, states: Tensor) -> Tensor:
        """Project keys (n, G, d): the first half of the layer's output."""
        return self._split(self._key_value(states)[0])

    def values(self, states: Tensor) -> Tensor:
        """Project values (n, G, d): the second half of the layer's output."""
        return self._split(self._key_value(states)[1])

    def key_weight(self, width: int, like: Tensor) -> Tensor | None:
        """Return the first half of the layer's weight (G, d, D), in float32."""
        projection = self._weight("c_attn", width, like)
        if projection is None:
            return None
        weight, _ = projection
        return weight.chunk(2)[0].unflatten(0, (self.groups, self.head_width))

    def value_weight(self, width: int, like: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """Return the second half of the layer's weight (G, d, D) and bias (G, d), in float32."""
        projection = self._weight("c_attn", width, like)
        if projection is None:
            return None
        weight, bias = projection
        bias = None if bias is None else self._split(bias.chunk(2)[1])
        return weight.chunk(2)[1].unflatten(0, (self.groups, self.head_width)), bias

    @property
    def dropout(self) -> float:
        """Dropout of the attention weights in training."""
        return self.module.attn_dropout.p if self.module.training else 0.0

    def project_output(self, context: Tensor, log_sum: Tensor, call: Call) -> tuple:
        """Project the context and apply dropout to the result."""
        out, weights = super().project_output(context, log_sum, call)
        return self.module.resid_dropout(out), weights


class EncoderDecoderAdapter(Adapter):
    """encoder-decoder: the class of cross-attention depends on the decoder."""

    def attentions(self, model: Any) -> list[CrossAttention]:
        """List the decoder's cross-attentions, of BERT's or GPT-2's kind, recognised by the names of their layers."""
        attentions: list[CrossAttention] = []
        for name, module in model.decoder.named_modules():
            if name.endswith("crossattention.self") and hasattr(module, "query"):
                attentions.append(_BertAttention(module))
            elif name.endswith("crossattention") and hasattr(module, "q_attn"):
                attentions.append(_Gpt2Attention(module))
        if not attentions:
            raise UnsupportedModelError(
                f"the decoder {type(model.decoder).__name__} has no cross-attention of a supported kind; expected a "
                "decoder like BERT, RoBERTa or GPT-2 that was created with add_cross_attention=True"
            )
        return attentions

    def decoder(self, model: Any) -> nn.Module:
        """Return the decoder with its language-model head, which the model calls with the mask."""
        return model.decoder

    def states_projection(self, model: Any) -> nn.Module | None:
        """Return the layer between encoder and decoder that exists if they differ in width."""
        return getattr(model, "enc_to_dec_proj", None)

    def window(self, model: Any, tokenizer: Any = None) -> int:
        """Return the number of positions of the encoder, without those that RoBERTa reserves for padding."""
        positions = super().window(model, tokenizer)
        embeddings = getattr(getattr(model.encoder, "embeddings", None), "position_embeddings", None)
        unused = getattr(embeddings, "padding_idx", None)
        return positions if unused is None else positions - unused - 1
