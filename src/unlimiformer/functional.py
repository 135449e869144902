"""The arithmetic of retrieval attention on tensors: fold, softmax, mix, merge. Knows no model and no store.

Shapes: N queries, H heads, G key-value heads (H = G x group), K hits, S stored tokens, D width of a state, d of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor


def fold_queries(queries: Tensor, key_weight: Tensor) -> Tensor:
    """Queries that search raw states (paper, equation 2): `queries` (N, H, d), `key_weight` (G, d, D) to (N, H, D)."""
    return _by_group(queries, key_weight)


def unfold_values(mixed: Tensor, value_weight: Tensor, value_bias: Tensor | None) -> Tensor:
    """Values of weighted sums of states: `mixed` (N, H, D), `value_weight` (G, d, D), bias (G, d) to (N, H, d).

    The weights of a sum add up to one, so that projecting the sum equals summing the projections.
    """
    values = _by_group(mixed, value_weight.transpose(1, 2))
    if value_bias is None:
        return values
    return values + value_bias.repeat_interleave(values.shape[1] // value_bias.shape[0], dim=0)


def _by_group(x: Tensor, weight: Tensor) -> Tensor:
    """Multiplies each head's vectors (N, H, a) with its group's matrix (G, a, b) to (N, H, b)."""
    n, heads, width = x.shape
    groups = weight.shape[0]
    grouped = x.reshape(n, groups, heads // groups, width).transpose(0, 1).reshape(groups, -1, width)
    out = torch.bmm(grouped, weight).reshape(groups, n, heads // groups, -1)
    return out.transpose(0, 1).reshape(n, heads, -1)


def cap(scores: Tensor, softcap: float | None) -> Tensor:
    """Soft-capped scores; order is kept, so that hits may be chosen before."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def weigh(scores: Tensor, valid: Tensor | None, softcap: float | None) -> tuple[Tensor, Tensor]:
    """Softmax over hits (..., K): their weights and the log of the sum (...)."""
    scores = scores.float()
    if softcap is not None:  # a miss has score -inf and needs no mask, unless capping makes it finite
        scores = cap(scores, softcap)
        scores = scores if valid is None else scores.masked_fill(~valid, float("-inf"))
    return scores.softmax(dim=-1), scores.logsumexp(dim=-1)


def attend_dense(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    top_k: int | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The slow, obvious, differentiable way: queries (N, H, d), keys and values (S, G, d) to context (N, H, d).

    Every score is computed; all but each head's top k are masked out. Also returns the log of the sums (N, H).
    """
    n, heads, width = queries.shape
    groups = keys.shape[1]
    grouped = queries.reshape(n, groups, heads // groups, width)
    scores = torch.einsum("nghd,sgd->nghs", grouped, keys).float()
    outside = None
    if top_k is not None and top_k < keys.shape[0]:
        chosen = scores.detach().topk(top_k, dim=-1, sorted=False).indices
        outside = torch.ones_like(scores, dtype=torch.bool).scatter_(-1, chosen, False)
    scores = cap(scores, softcap)
    if outside is not None:
        scores = scores.masked_fill(outside, float("-inf"))
    log_sum = scores.logsumexp(dim=-1)
    weights = torch.nn.functional.dropout((scores - log_sum[..., None]).exp(), dropout, training=dropout > 0)
    context = torch.einsum("nghs,sgd->nghd", weights.to(values.dtype), values)
    return context.reshape(n, heads, -1), log_sum.reshape(n, heads)


def merge(context: Tensor, log_sum: Tensor, other: Tensor, other_log_sum: Tensor) -> Tensor:
    """One softmax over two sets of keys from the attention over each: contexts (..., d), log sums (...)."""
    total = torch.logaddexp(log_sum, other_log_sum)
    first, second = (log_sum - total).exp()[..., None], (other_log_sum - total).exp()[..., None]
    return (context * first + other * second).to(context.dtype)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: states (..., n, d), of which the first r numbers are rotated, by cosines and sines (n, r)."""
    turned, rest = states[..., : cos.shape[-1]], states[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos.to(states) + torch.cat((-second, first), dim=-1) * sin.to(states)
    return torch.cat((turned, rest), dim=-1)


def folding_is_cheaper(queries: int, heads: int, groups: int, head_width: int, width: int, stored: int) -> bool:
    """Counts multiply-adds of one layer's scores: folded queries against states, or projected keys."""
    folded = queries * heads * (head_width * width + stored * width)
    projected = stored * width * groups * head_width + queries * heads * stored * head_width
    return folded <= projected
