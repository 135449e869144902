"""Attention whose scores are recomputed in the backward pass, compared with dense attention."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from unlimiformer.engines.seq2seq import attention_grad
from unlimiformer.engines.seq2seq.attention_grad import checkpointed_attention
from unlimiformer.functional import attend_dense

N, HEADS, ROWS, WIDTH, HEAD = 7, 4, 50, 12, 8


def _view(groups: int, softcap: float | None = None, dropout: float = 0.0):
    generator = torch.Generator().manual_seed(groups)
    weights = (torch.randn(2, groups, HEAD, WIDTH, generator=generator) * WIDTH**-0.5).requires_grad_()
    return weights, SimpleNamespace(
        heads=HEADS,
        groups=groups,
        softcap=softcap,
        dropout=dropout,
        keys=lambda states: torch.einsum("sD,gdD->sgd", states, weights[0]),
        values=lambda states: torch.einsum("sD,gdD->sgd", states, weights[1]),
    )


def _inputs():
    """Queries with scores of about ±2, as in a model: larger ones would magnify the rounding of gradients."""
    generator = torch.Generator().manual_seed(0)
    queries = 0.7 * torch.randn((N, HEADS, HEAD), generator=generator)
    states = torch.randn((ROWS, WIDTH), generator=generator)
    loss_weights = [torch.randn(shape, generator=generator) for shape in ((N, HEADS, HEAD), (N, HEADS))]
    return queries.requires_grad_(), states.requires_grad_(), loss_weights


def _with_gradients(outputs, loss_weights, *inputs):
    """Contexts, log-sum-exps, and the gradients of a weighted sum of both."""
    loss = sum((output * weight).sum() for output, weight in zip(outputs, loss_weights, strict=True))
    return [*outputs, *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("top_k", [None, 1, 9, ROWS])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("at_once", [1, 1 << 24])
def test_equal_to_dense_attention(groups, top_k, softcap, at_once, monkeypatch):
    monkeypatch.setattr(attention_grad, "SCORES", at_once)
    weights, view = _view(groups, softcap)
    queries, states, loss_weights = _inputs()
    outputs = checkpointed_attention(view, queries, states, top_k)
    dense_outputs = attend_dense(queries, view.keys(states), view.values(states), top_k, softcap)
    got, expected = (_with_gradients(o, loss_weights, queries, states, weights) for o in (outputs, dense_outputs))
    for tensor, dense in zip(got, expected, strict=True):
        torch.testing.assert_close(tensor, dense, rtol=1e-4, atol=1e-4)


def test_dropout_is_the_same_in_both_passes():
    """The gradient is that of the remaining weights; about a third of them were dropped."""
    weights, view = _view(groups=HEADS, dropout=0.3)
    queries, states, loss_weights = _inputs()
    torch.manual_seed(5)
    outputs = checkpointed_attention(view, queries, states, None)
    got = _with_gradients(outputs, loss_weights, queries, states, weights)
    torch.manual_seed(5)
    seed = int(torch.randint(1 << 62, ()))
    dropout = attention_grad._DropoutMask(attention_grad._AttentionRule(None, None, 0.3, seed, 1), queries.device)
    factor = dropout.scale(torch.empty(HEADS, N, ROWS))
    assert 0.2 < (factor == 0).float().mean() < 0.4
    scores = torch.einsum("nhd,shd->hns", queries, view.keys(states))
    context = torch.einsum("hns,shd->nhd", scores.softmax(-1) * factor, view.values(states))
    expected = _with_gradients((context, scores.logsumexp(-1).T), loss_weights, queries, states, weights)
    for tensor, dense in zip(got, expected, strict=True):
        torch.testing.assert_close(tensor, dense, rtol=1e-4, atol=1e-4)


def test_top_k_is_searched_once(monkeypatch):
    """Neither the checkpoint nor the gradients search again."""
    searches = []
    original = torch.Tensor.topk
    monkeypatch.setattr(torch.Tensor, "topk", lambda *args, **kw: searches.append(1) or original(*args, **kw))
    weights, view = _view(groups=2)
    queries, states, loss_weights = _inputs()
    _with_gradients(checkpointed_attention(view, queries, states, 5), loss_weights, queries, states, weights)
    assert len(searches) == 1


def test_autocast_in_the_forward_pass_only():
    """Queries and states are float32, the layer's projections bfloat16; outputs stay close."""
    weights, view = _view(groups=2)
    queries, states, loss_weights = _inputs()
    expected = checkpointed_attention(view, queries, states, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = checkpointed_attention(view, queries, states, 9)
    got = _with_gradients(outputs, loss_weights, queries, states, weights)
    assert all(tensor.dtype == torch.float32 for tensor in got)
    for output, exact in zip(outputs, expected, strict=True):
        assert float((output - exact).detach().norm() / exact.detach().norm()) < 0.1
