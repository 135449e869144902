"""Retrieval attention as pure functions on tensors: project, softmax, merge, rotate. Knows no model and no store.

Shapes: N queries, H heads, G key-value heads (H = G x group size), K hits, S stored tokens, D width of a state,
d width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor


def fold_queries(queries: Tensor, key_weight: Tensor) -> Tensor:
    """Multiply queries with the key projection, so that they can search raw states (paper, equation 2).

    Parameters
    ----------
    queries : (N, H, d)
    key_weight : (G, d, D)

    Returns the folded queries (N, H, D).
    """
    return _multiply_groups(queries, key_weight)


def unfold_values(mixed: Tensor, value_weight: Tensor, value_bias: Tensor | None) -> Tensor:
    """Project weighted sums of states to values.

    The weights of each sum must add up to one: then projecting the sum equals summing the projected states.

    Parameters
    ----------
    mixed : weighted sums of states (N, H, D).
    value_weight : (G, d, D)
    value_bias : (G, d), or None

    Returns the values (N, H, d).
    """
    values = _multiply_groups(mixed, value_weight.transpose(1, 2))
    if value_bias is None:
        return values
    heads_per_group = values.shape[1] // value_bias.shape[0]
    return values + (value_bias if heads_per_group == 1 else value_bias.repeat_interleave(heads_per_group, dim=0))


def _multiply_groups(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply the vectors of each head (N, H, a) with the matrix of its group (G, a, b) to (N, H, b)."""
    n, heads, width = x.shape
    groups = weight.shape[0]
    if groups == heads:
        return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)
    grouped = x.reshape(n, groups, heads // groups, width).transpose(0, 1).reshape(groups, -1, width)
    product = torch.bmm(grouped, weight).reshape(groups, n, heads // groups, -1)
    return product.transpose(0, 1).reshape(n, heads, -1)


def apply_softcap(scores: Tensor, softcap: float | None) -> Tensor:
    """Soft-cap scores with a tanh. This keeps their order, so hits may be selected before capping."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def softmax_weights(scores: Tensor, valid: Tensor | None, softcap: float | None) -> tuple[Tensor, Tensor]:
    """Compute the softmax over the scores of hits (..., K): their weights (..., K) and the log-sum-exp (...)."""
    scores = scores.float()
    if softcap is not None:  # an invalid hit has score -inf, which needs a mask only where capping makes it finite
        scores = apply_softcap(scores, softcap)
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
    """Attend to all keys and mask out all but the top k of each head. The slow, differentiable reference.

    Parameters
    ----------
    queries : (N, H, d), already scaled.
    keys, values : (S, G, d)
    top_k : keys that each head attends to; None: all.
    softcap : bound of the scores, or None.
    dropout : share of the attention weights that is dropped.

    Returns the context (N, H, d) and the log-sum-exp of the scores (N, H).
    """
    n, heads, width = queries.shape
    groups = keys.shape[1]
    grouped = queries.reshape(n, groups, heads // groups, width)
    scores = torch.einsum("nghd,sgd->nghs", grouped, keys).float()
    masked = None
    if top_k is not None and top_k < keys.shape[0]:
        best = scores.detach().topk(top_k, dim=-1, sorted=False).indices
        masked = torch.ones_like(scores, dtype=torch.bool).scatter_(-1, best, False)
    scores = apply_softcap(scores, softcap)
    if masked is not None:
        scores = scores.masked_fill(masked, float("-inf"))
    log_sum = scores.logsumexp(dim=-1)
    weights = torch.nn.functional.dropout((scores - log_sum[..., None]).exp(), dropout, training=dropout > 0)
    context = torch.einsum("nghs,sgd->nghd", weights.to(values.dtype), values)
    return context.reshape(n, heads, -1), log_sum.reshape(n, heads)


def merge(context: Tensor, log_sum: Tensor, other: Tensor, other_log_sum: Tensor) -> Tensor:
    """Merge the attention over two sets of keys into that of one softmax over both.

    Parameters
    ----------
    context, other : contexts (..., d).
    log_sum, other_log_sum : log-sum-exp of the scores of each (...).
    """
    total = torch.logaddexp(log_sum, other_log_sum)
    share, other_share = (log_sum - total).exp()[..., None], (other_log_sum - total).exp()[..., None]
    return (context * share + other * other_share).to(context.dtype)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions: the first r numbers of states (..., n, d) are rotated by cosines and sines (n, r)."""
    rotated, rest = states[..., : cos.shape[-1]], states[..., cos.shape[-1] :]
    first, second = rotated.chunk(2, dim=-1)
    rotated = rotated * cos.to(states) + torch.cat((-second, first), dim=-1) * sin.to(states)
    return torch.cat((rotated, rest), dim=-1)


def folding_is_cheaper(queries: int, heads: int, groups: int, head_width: int, width: int, stored: int) -> bool:
    """Whether scoring raw states with folded queries takes no more multiply-adds than projecting all keys.

    The parameters are the sizes N, H, G, d, D and S of one layer.
    """
    folded = queries * heads * (head_width * width + stored * width)
    projected = stored * width * groups * head_width + queries * heads * stored * head_width
    return folded <= projected
