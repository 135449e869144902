"""Attention for training: the top-k keys are chosen once, and scores are recomputed in the backward pass.

The forward pass keeps for each query its lowest selected score, the log-sum-exp of its scores and its output. The
backward pass computes the scores again, some queries at a time. Equal to `functional.attend_dense`, with less memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ...adapters import CrossAttention
from ...functional import apply_softcap

SCORES = 1 << 24
"""Number of scores that one layer's attention holds at once."""


@dataclass
class _FirstPass:
    """Results of the forward pass: context (G, R, d), log-sum-exp (G, R), lowest selected score (G, R) or None."""

    context: Tensor
    log_sum: Tensor
    lowest: Tensor | None


@dataclass(frozen=True)
class _AttentionRule:
    """Settings of one attention; `rows_at_once` queries are computed together."""

    top_k: int | None
    softcap: float | None
    dropout: float
    seed: int
    rows_at_once: int


def checkpointed_attention(
    view: CrossAttention, queries: Tensor, states: Tensor, top_k: int | None
) -> tuple[Tensor, Tensor]:
    """Differentiable attention of queries (N, H, d) to states (S, D): contexts (N, H, d), log-sum-exps (N, H).

    Keys and values exist only while they are used, and are recomputed in the backward pass.
    """
    (n, heads, width), rows = queries.shape, states.shape[0]
    seed = int(torch.randint(1 << 62, ())) if view.dropout > 0 else 0
    top_k = None if top_k is None or top_k >= rows else top_k
    rule = _AttentionRule(top_k, view.softcap, view.dropout, seed, max(1, SCORES // (view.groups * rows)))
    first_pass: list[_FirstPass] = []

    def layer(queries: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = (part.to(queries.dtype).transpose(0, 1) for part in (view.keys(states), view.values(states)))
        grouped = queries.reshape(n, view.groups, -1, width).transpose(0, 1).reshape(view.groups, -1, width)
        with torch.autocast(queries.device.type, enabled=False):  # both passes compute in the dtype of the queries
            return _Attention.apply(grouped, keys, values, rule, first_pass)

    context, log_sum = checkpoint(layer, queries, states, use_reentrant=False)
    by_query = context.unflatten(1, (n, -1)).transpose(0, 1).reshape(n, heads, -1)
    return by_query, log_sum.unflatten(1, (n, -1)).transpose(0, 1).reshape(n, heads)


class _Attention(torch.autograd.Function):
    """Attention of queries (G, R, d) to keys and values (G, S, d).

    `first_pass` is filled by the first call; the second, which the checkpoint makes, reuses it.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, rule: _AttentionRule, first_pass: list[_FirstPass]
    ) -> tuple[Tensor, Tensor]:
        if not first_pass:
            parts = list(_forward_parts(queries, keys, values, rule))
            joined = [None if part[0] is None else torch.cat(part, dim=1) for part in zip(*parts, strict=True)]
            first_pass.append(_FirstPass(*joined))  # type: ignore[arg-type]
        ctx.save_for_backward(queries, keys, values)
        ctx.rule, ctx.first_pass = rule, first_pass[0]
        return ctx.first_pass.context.clone(), ctx.first_pass.log_sum.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, context_grad: Tensor, log_sum_grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values = ctx.saved_tensors
        rule, first_pass = ctx.rule, ctx.first_pass
        query_grad, key_grad, value_grad = (torch.zeros_like(tensor) for tensor in (queries, keys, values))
        dropout = _DropoutMask(rule, queries.device)
        for rows in _parts(queries, rule):
            scores = (queries[:, rows] @ keys.mT).float()
            outside = None if first_pass.lowest is None else scores < first_pass.lowest[:, rows, None]
            scores = apply_softcap(scores, rule.softcap)
            weights = (scores - first_pass.log_sum[:, rows, None]).exp_()
            if outside is not None:
                weights.masked_fill_(outside, 0.0)
            output_grad = context_grad[:, rows]
            factor = dropout.scale(weights)
            value_grad += (weights * factor if factor is not None else weights).to(output_grad).mT @ output_grad
            score_grad = (output_grad @ values.mT).float()
            if factor is not None:
                score_grad *= factor
            shared = (output_grad * first_pass.context[:, rows]).sum(-1, dtype=torch.float32) - log_sum_grad[:, rows]
            score_grad = score_grad.sub_(shared[..., None]).mul_(weights)
            if rule.softcap is not None:
                score_grad *= 1 - (scores / rule.softcap) ** 2
            score_grad = score_grad.to(queries.dtype)
            query_grad[:, rows] = score_grad @ keys
            key_grad += score_grad.mT @ queries[:, rows]
        return query_grad, key_grad, value_grad, None, None


def _forward_parts(
    queries: Tensor, keys: Tensor, values: Tensor, rule: _AttentionRule
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    dropout = _DropoutMask(rule, queries.device)
    for rows in _parts(queries, rule):
        scores = (queries[:, rows] @ keys.mT).float()
        lowest = outside = None
        if rule.top_k is not None:  # chosen before they are capped, because ties are rare then
            lowest = scores.topk(rule.top_k, dim=-1, sorted=False).values.amin(-1)
            outside = scores < lowest[..., None]
        scores = apply_softcap(scores, rule.softcap)
        if outside is not None:
            scores = scores.masked_fill_(outside, float("-inf"))
        log_sum = scores.logsumexp(-1)
        weights = scores.sub_(log_sum[..., None]).exp_()
        factor = dropout.scale(weights)
        if factor is not None:
            weights *= factor
        yield weights.to(values.dtype) @ values, log_sum, lowest


def _parts(queries: Tensor, rule: _AttentionRule) -> Iterator[slice]:
    for start in range(0, queries.shape[1], rule.rows_at_once):
        yield slice(start, start + rule.rows_at_once)


class _DropoutMask:
    """Dropout of attention weights, the same in both passes."""

    def __init__(self, rule: _AttentionRule, device: torch.device) -> None:
        self._rate = rule.dropout
        self._generator = torch.Generator(device).manual_seed(rule.seed) if rule.dropout > 0 else None

    def scale(self, weights: Tensor) -> Tensor | None:
        """Factor of each weight; None without dropout."""
        if self._generator is None:
            return None
        return torch.empty_like(weights).bernoulli_(1 - self._rate, generator=self._generator).div_(1 - self._rate)
