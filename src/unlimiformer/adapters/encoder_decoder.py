"""EncoderDecoderModel: any encoder with any decoder that has BERT's or GPT-2's cross-attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..errors import UnsupportedModelError
from .base import Adapter, CrossAttention


class _BertAttention(CrossAttention):
    """BERT and its relatives: the output projection is a neighbour, outside this module."""

    query_name, key_name, value_name = "query", "key", "value"
    heads_name, head_width_name = "num_attention_heads", "attention_head_size"
    states_argument = (1, "encoder_hidden_states")

    def finish(self, context: Tensor, log_sum: Tensor, call) -> tuple:
        """The bare context."""
        return context.flatten(-2), None


class _Gpt2Attention(CrossAttention):
    """GPT-2: keys and values come out of one layer, and the answer is dropped out."""

    query_name, output_name = "q_attn", "c_proj"
    states_argument = (3, "encoder_hidden_states")

    def _key_value(self, states: Tensor) -> tuple[Tensor, ...]:
        return self.module.c_attn(states).split(self.module.split_size, dim=-1)

    def keys(self, states: Tensor) -> Tensor:
        """The first half."""
        return self._split(self._key_value(states)[0])

    def values(self, states: Tensor) -> Tensor:
        """The second half."""
        return self._split(self._key_value(states)[1])

    def key_weight(self, width: int, like: Tensor) -> Tensor | None:
        """The first half of the weight."""
        found = self._weight("c_attn", width, like)
        return None if found is None else found[0].chunk(2)[0].unflatten(0, (self.groups, self.head_width))

    def value_weight(self, width: int, like: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """The second half of the weight."""
        found = self._weight("c_attn", width, like)
        if found is None:
            return None
        weight, bias = found
        bias = None if bias is None else self._split(bias.chunk(2)[1])
        return weight.chunk(2)[1].unflatten(0, (self.groups, self.head_width)), bias

    @property
    def dropout(self) -> float:
        """Of attention weights."""
        return self.module.attn_dropout.p if self.module.training else 0.0

    def finish(self, context: Tensor, log_sum: Tensor, call) -> tuple:
        """The projected answer, dropped out."""
        out, weights = super().finish(context, log_sum, call)
        return self.module.resid_dropout(out), weights


class EncoderDecoderAdapter(Adapter):
    """encoder-decoder: the decoder's attention decides how it is read."""

    def attentions(self, model: Any) -> list[CrossAttention]:
        """BERT's kind or GPT-2's, told by their parts."""
        found: list[CrossAttention] = []
        for name, module in model.decoder.named_modules():
            if name.endswith("crossattention.self") and hasattr(module, "query"):
                found.append(_BertAttention(module))
            elif name.endswith("crossattention") and hasattr(module, "q_attn"):
                found.append(_Gpt2Attention(module))
        if not found:
            raise UnsupportedModelError(
                f"the decoder {type(model.decoder).__name__} has no cross-attention that is known; expected a decoder "
                "of the kind of BERT, RoBERTa or GPT-2, made with add_cross_attention=True"
            )
        return found

    def decoder(self, model: Any) -> nn.Module:
        """The decoder with its head: that is what the model calls with the mask."""
        return model.decoder

    def states_projection(self, model: Any) -> nn.Module | None:
        """Encoder and decoder may differ in width."""
        return getattr(model, "enc_to_dec_proj", None)

    def window(self, model: Any, tokenizer: Any = None) -> int:
        """The encoder's positions, less those that RoBERTa's numbering leaves unused."""
        positions = super().window(model, tokenizer)
        embeddings = getattr(getattr(model.encoder, "embeddings", None), "position_embeddings", None)
        unused = getattr(embeddings, "padding_idx", None)
        return positions if unused is None else positions - unused - 1
