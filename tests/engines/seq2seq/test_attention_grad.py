"""Attention that is computed again for its gradients, against the slow, obvious way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from unlimiformer.engines.seq2seq import attention_grad as recomputing
from unlimiformer.engines.seq2seq.attention_grad import checkpointed_attention
from unlimiformer.functional import attend_dense

N, HEADS, ROWS, WIDTH, HEAD = 7, 4, 50, 12, 8


def _view(groups: int, softcap: float | None = None, dropout: float = 0.0):
    generator = torch.Generator().manual_seed(groups)
    weights = torch.randn(2, groups, HEAD, WIDTH, generator=generator).requires_grad_()
    return weights, SimpleNamespace(
        heads=HEADS,
        groups=groups,
        softcap=softcap,
        dropout=dropout,
        keys=lambda states: torch.einsum("sD,gdD->sgd", states, weights[0]),
        values=lambda states: torch.einsum("sD,gdD->sgd", states, weights[1]),
    )


def _inputs():
    generator = torch.Generator().manual_seed(0)
    queries, states = (torch.randn(shape, generator=generator) for shape in ((N, HEADS, HEAD), (ROWS, WIDTH)))
    wanted = [torch.randn(shape, generator=generator) for shape in ((N, HEADS, HEAD), (N, HEADS))]
    return queries.requires_grad_(), states.requires_grad_(), wanted


def _told(made, wanted, *inputs):
    """Answers, log sums, and the gradients of a loss in which both count."""
    loss = sum((each * weight).sum() for each, weight in zip(made, wanted, strict=True))
    return [*made, *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("top_k", [None, 1, 9, ROWS])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("at_once", [1, 1 << 24])
def test_equal_to_dense_attention(groups, top_k, softcap, at_once, monkeypatch):
    monkeypatch.setattr(recomputing, "SCORES", at_once)
    weights, view = _view(groups, softcap)
    queries, states, wanted = _inputs()
    got = _told(checkpointed_attention(view, queries, states, top_k), wanted, queries, states, weights)
    dense = attend_dense(queries, view.keys(states), view.values(states), top_k, softcap)
    for mine, expected in zip(got, _told(dense, wanted, queries, states, weights), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


def test_what_is_dropped_is_dropped_in_both_passes():
    """The gradient is that of the weights that were left, and about a third of them are gone."""
    weights, view = _view(groups=HEADS, dropout=0.3)
    queries, states, wanted = _inputs()
    torch.manual_seed(5)
    got = _told(checkpointed_attention(view, queries, states, None), wanted, queries, states, weights)
    torch.manual_seed(5)
    seed = int(torch.randint(1 << 62, ()))
    chance = recomputing._DropoutMask(recomputing._AttentionRule(None, None, 0.3, seed, 1), queries.device)
    factor = chance.kept_weights(torch.empty(HEADS, N, ROWS))
    assert 0.2 < (factor == 0).float().mean() < 0.4
    scores = torch.einsum("nhd,shd->hns", queries, view.keys(states))
    mixed = torch.einsum("hns,shd->nhd", scores.softmax(-1) * factor, view.values(states))
    expected = _told((mixed, scores.logsumexp(-1).T), wanted, queries, states, weights)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_the_best_are_chosen_once(monkeypatch):
    """Neither the checkpoint nor the gradients search again."""
    searched = []
    original = torch.Tensor.topk
    monkeypatch.setattr(torch.Tensor, "topk", lambda *args, **kw: searched.append(1) or original(*args, **kw))
    weights, view = _view(groups=2)
    queries, states, wanted = _inputs()
    _told(checkpointed_attention(view, queries, states, 5), wanted, queries, states, weights)
    assert len(searched) == 1


def test_autocast_in_the_forward_pass_alone():
    """Queries and states are float32, a layer's projections bfloat16: gradients come, and answers are near."""
    weights, view = _view(groups=2)
    queries, states, wanted = _inputs()
    expected = checkpointed_attention(view, queries, states, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = checkpointed_attention(view, queries, states, 9)
    got = _told(made, wanted, queries, states, weights)
    assert all(each.dtype == torch.float32 for each in got)
    for mine, theirs in zip(made, expected, strict=True):
        assert float((mine - theirs).detach().norm() / theirs.detach().norm()) < 0.1
