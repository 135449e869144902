"""Adapters of T5Gemma (grouped-query cross-attention, soft-capped scores) and T5Gemma 2 (one softmax over target and
source)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..functional import merge
from .base import Adapter, Call, CrossAttention


class _GemmaAttention(CrossAttention):
    output_name = "o_proj"
    states_argument = (2, "encoder_hidden_states")

    def _heads(self) -> int:
        return self.module.config.num_attention_heads

    def _groups(self) -> int:
        return self.module.config.num_key_value_heads

    @property
    def softcap(self) -> float | None:
        """Bound of the scores, applied with a tanh."""
        return self.module.attn_logit_softcapping

    @property
    def dropout(self) -> float:
        """Dropout of the attention weights in training."""
        return self.module.attention_dropout if self.module.training else 0.0


class T5GemmaAdapter(Adapter):
    """t5gemma: cross-attention in a module of its own."""

    cross_attention = _GemmaAttention
    cross_attention_name = "cross_attn"


class _MergedAttention(_GemmaAttention):
    """One softmax over target and source; all keys are normalised, those of the source are not rotated."""

    hidden_argument = (0, "hidden_states")
    rotation_argument = (1, "position_embeddings")
    mask_argument = (2, "merged_attention_mask")
    states_argument = (3, "encoder_hidden_states")
    cache_argument = (4, "past_key_values")

    @property
    def softcap(self) -> None:
        """None: the scores of T5Gemma 2 have no bound."""
        return None

    def queries(self, call: Call) -> Tensor:
        """Project, normalise, rotate and scale queries (B, T, H, d); target and source share them."""
        projected = self.module.q_proj(call.get(self.hidden_argument)).unflatten(-1, (self.heads, self.head_width))
        return _rotate(self.module.q_norm(projected), call.get(self.rotation_argument)) * self.scaling

    def keys(self, states: Tensor) -> Tensor:
        """Project and normalise keys (n, G, d)."""
        return self.module.k_norm(super().keys(states))

    def key_weight(self, width: int, like: Tensor) -> None:
        """None: a normalised key is not a linear function of its state."""
        return None

    def project_output(self, context: Tensor, log_sum: Tensor, call: Call) -> tuple:
        """Merge the context with the attention to the target's own tokens, and project it."""
        target, target_log_sum = self._attend_to_target(call)
        out = merge(context.float(), log_sum, target.float(), target_log_sum).to(context.dtype)
        return self.module.o_proj(out.flatten(-2)), None, None

    def _attend_to_target(self, call: Call) -> tuple[Tensor, Tensor]:
        """Compute causal attention over the target: context (B, T, H, d) and log-sum-exp of the scores (B, T, H)."""
        hidden, cache = call.get(self.hidden_argument), call.get(self.cache_argument)
        keys = _rotate(self.keys(hidden), call.get(self.rotation_argument)).transpose(1, 2)
        values = self.values(hidden).transpose(1, 2)
        if cache is not None:
            keys, values = cache.self_attention_cache.update(keys, values, self.module.layer_idx)
        group = self.heads // self.groups
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = (self.queries(call).transpose(1, 2) @ keys.transpose(2, 3)).float()  # (B, H, T, T)
        mask = call.get(self.mask_argument)[..., :-1]  # the last column belongs to the placeholder of the source
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask.float()
        log_sum = scores.logsumexp(dim=-1)
        weights = nn.functional.dropout((scores - log_sum[..., None]).exp(), self.dropout, self.dropout > 0)
        return (weights.to(values.dtype) @ values).transpose(1, 2), log_sum.transpose(1, 2)


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary positions to (B, T, H, d)."""
    cos, sin = (part.unsqueeze(2) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class T5Gemma2Adapter(Adapter):
    """t5gemma2: text only; cross-attention and self-attention are one module."""

    cross_attention = _MergedAttention
    cross_attention_name = "self_attn"

    def window(self, model: Any, tokenizer: Any = None) -> int:
        """Return the position limit of the text encoder."""
        return self.encoder(model).config.text_config.max_position_embeddings
