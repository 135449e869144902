"""Attention for training: the best keys of every query are chosen once, and no score outlives the step that needs it.

Forward keeps what a query let through (its lowest score), the sum of its scores and its answer; scores are computed
again, some queries at a time, for their gradients. Equal to `attention.attend_dense`, with the memory of one part.
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
from ...functional import cap

SCORES = 1 << 24
"""Numbers that one layer's attention holds at once."""


@dataclass
class _FirstPass:
    """Of the first pass: answers (G, R, d), log sums (G, R), lowest scores let through (G, R; None for all of them)."""

    context: Tensor
    log_sum: Tensor
    lowest: Tensor | None


@dataclass(frozen=True)
class _AttentionRule:
    top_k: int | None
    softcap: float | None
    dropout: float
    seed: int
    at_once: int


def checkpointed_attention(
    view: CrossAttention, queries: Tensor, states: Tensor, top_k: int | None
) -> tuple[Tensor, Tensor]:
    """Differentiable attention of queries (N, H, d) to states (S, D): contexts (N, H, d) and log sums (N, H).

    A layer's keys and values exist only while they are used, and are computed again for gradients.
    """
    (n, heads, width), rows = queries.shape, states.shape[0]
    seed = int(torch.randint(1 << 62, ())) if view.dropout > 0 else 0
    top_k = None if top_k is None or top_k >= rows else top_k
    rule = _AttentionRule(top_k, view.softcap, view.dropout, seed, max(1, SCORES // (view.groups * rows)))
    first_pass: list[_FirstPass] = []

    def layer(queries: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = (made.to(queries.dtype).transpose(0, 1) for made in (view.keys(states), view.values(states)))
        grouped = queries.reshape(n, view.groups, -1, width).transpose(0, 1).reshape(view.groups, -1, width)
        with torch.autocast(queries.device.type, enabled=False):  # both passes compute in the queries' own dtype
            return _Attention.apply(grouped, keys, values, rule, first_pass)

    context, log_sum = checkpoint(layer, queries, states, use_reentrant=False)
    by_query = context.unflatten(1, (n, -1)).transpose(0, 1).reshape(n, heads, -1)
    return by_query, log_sum.unflatten(1, (n, -1)).transpose(0, 1).reshape(n, heads)


class _Attention(torch.autograd.Function):
    """Queries (G, R, d) on keys and values (G, S, d). `first_pass` is filled by the first call and spares the second
    (a checkpoint's) all work."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, rule: _AttentionRule, first_pass: list[_FirstPass]
    ) -> tuple[Tensor, Tensor]:
        if not first_pass:
            parts = list(_answers(queries, keys, values, rule))
            joined = [None if part[0] is None else torch.cat(part, dim=1) for part in zip(*parts, strict=True)]
            first_pass.append(_FirstPass(*joined))  # type: ignore[arg-type]
        ctx.save_for_backward(queries, keys, values)
        ctx.rule, ctx.kept = rule, first_pass[0]
        return ctx.kept.context.clone(), ctx.kept.log_sum.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, context_gradient: Tensor, log_sum_gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values = ctx.saved_tensors
        rule, kept = ctx.rule, ctx.kept
        of_queries, of_keys, of_values = (torch.zeros_like(each) for each in (queries, keys, values))
        chance = _DropoutMask(rule, queries.device)
        for rows in _parts(queries, rule):
            scores = (queries[:, rows] @ keys.mT).float()
            outside = None if kept.lowest is None else scores < kept.lowest[:, rows, None]
            scores = cap(scores, rule.softcap)
            weights = (scores - kept.log_sum[:, rows, None]).exp_()
            if outside is not None:
                weights.masked_fill_(outside, 0.0)
            given = context_gradient[:, rows]
            factor = chance.kept_weights(weights)
            of_values += (weights * factor if factor is not None else weights).to(given).mT @ given
            change = (given @ values.mT).float()
            if factor is not None:
                change *= factor
            shared = (given * kept.context[:, rows]).sum(-1, dtype=torch.float32) - log_sum_gradient[:, rows]
            change = change.sub_(shared[..., None]).mul_(weights)
            if rule.softcap is not None:
                change *= 1 - (scores / rule.softcap) ** 2
            change = change.to(queries.dtype)
            of_queries[:, rows] = change @ keys
            of_keys += change.mT @ queries[:, rows]
        return of_queries, of_keys, of_values, None, None


def _answers(
    queries: Tensor, keys: Tensor, values: Tensor, rule: _AttentionRule
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    chance = _DropoutMask(rule, queries.device)
    for rows in _parts(queries, rule):
        scores = (queries[:, rows] @ keys.mT).float()
        lowest = outside = None
        if rule.top_k is not None:  # chosen before they are capped: then equal ones are rare
            lowest = scores.topk(rule.top_k, dim=-1, sorted=False).values.amin(-1)
            outside = scores < lowest[..., None]
        scores = cap(scores, rule.softcap)
        if outside is not None:
            scores = scores.masked_fill_(outside, float("-inf"))
        log_sum = scores.logsumexp(-1)
        weights = scores.sub_(log_sum[..., None]).exp_()
        factor = chance.kept_weights(weights)
        if factor is not None:
            weights *= factor
        yield weights.to(values.dtype) @ values, log_sum, lowest


def _parts(queries: Tensor, rule: _AttentionRule) -> Iterator[slice]:
    for start in range(0, queries.shape[1], rule.at_once):
        yield slice(start, start + rule.at_once)


class _DropoutMask:
    """Drops the same weights in both passes."""

    def __init__(self, rule: _AttentionRule, device: torch.device) -> None:
        self._rate = rule.dropout
        self._generator = torch.Generator(device).manual_seed(rule.seed) if rule.dropout > 0 else None

    def kept_weights(self, weights: Tensor) -> Tensor | None:
        """What each weight is multiplied with; None where all are kept as they are."""
        if self._generator is None:
            return None
        return torch.empty_like(weights).bernoulli_(1 - self._rate, generator=self._generator).div_(1 - self._rate)
