"""Folding, projecting, softmax and merging give the numbers of plain attention."""

from __future__ import annotations

import pytest
import torch

from unlimiformer.functional import attend_dense, fold_queries, folding_is_cheaper, merge, unfold_values, weigh

N, H, D, W, S = 5, 6, 20, 8, 33


@pytest.fixture(params=[6, 3, 1], ids=lambda g: f"{g} key-value heads")
def parts(request):
    torch.manual_seed(0)
    groups = request.param
    states = torch.randn(S, D)
    key_weight, value_weight = torch.randn(groups, W, D), torch.randn(groups, W, D)
    value_bias = torch.randn(groups, W)
    queries = torch.randn(N, H, W)
    keys = torch.einsum("se,gde->sgd", states, key_weight)
    values = torch.einsum("se,gde->sgd", states, value_weight) + value_bias
    return states, key_weight, value_weight, value_bias, queries, keys, values


def _plain(queries, keys, values):
    repeat = queries.shape[1] // keys.shape[1]
    k, v = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
    return torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), scale=1.0
    ).transpose(0, 1)


def test_dense_attention_is_attention(parts):
    *_, queries, keys, values = parts
    assert torch.allclose(attend_dense(queries, keys, values)[0], _plain(queries, keys, values), atol=1e-5)


def test_folded_queries_and_unfolded_values_are_attention(parts):
    states, key_weight, value_weight, value_bias, queries, keys, values = parts
    weights, log_sum = weigh(fold_queries(queries, key_weight) @ states.T, None, None)
    context = unfold_values(weights @ states, value_weight, value_bias)
    expected, expected_log_sum = attend_dense(queries, keys, values)
    assert torch.allclose(context, expected, atol=1e-4)
    assert torch.allclose(log_sum, expected_log_sum, atol=1e-4)


def test_top_k_attends_to_the_k_best_alone(parts):
    *_, queries, keys, values = parts
    context, _ = attend_dense(queries, keys, values, top_k=4)
    repeat = H // keys.shape[1]
    for n in range(N):
        for h in range(H):
            scores = keys[:, h // repeat] @ queries[n, h]
            best = scores.topk(4).indices
            expected = scores[best].softmax(0) @ values[best, h // repeat]
            assert torch.allclose(context[n, h], expected, atol=1e-4)


def test_merging_two_halves_is_one_softmax(parts):
    *_, queries, keys, values = parts
    whole, _ = attend_dense(queries, keys, values)
    first = attend_dense(queries, keys[:10], values[:10])
    second = attend_dense(queries, keys[10:], values[10:])
    assert torch.allclose(merge(*first, *second), whole, atol=1e-5)


def test_a_miss_weighs_nothing_even_when_scores_are_capped():
    scores = torch.tensor([[1.0, 2.0, float("-inf")]])
    valid = torch.tensor([[True, True, False]])
    for softcap in (None, 1.5):
        weights, _ = weigh(scores, valid, softcap)
        assert weights[0, 2] == 0
        assert torch.isclose(weights.sum(), torch.tensor(1.0))


def test_few_queries_fold_and_many_project():
    assert folding_is_cheaper(1, 12, 12, 64, 768, 131072)
    assert not folding_is_cheaper(512, 12, 12, 64, 768, 131072)
