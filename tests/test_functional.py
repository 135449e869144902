"""Folded queries, projected values, softmax and merging give the same numbers as ordinary attention."""

from __future__ import annotations

import pytest
import torch

from unlimiformer.functional import (
    attend_dense,
    fold_queries,
    folding_is_cheaper,
    merge,
    softmax_weights,
    unfold_values,
)

N, H, D, W, S = 5, 6, 20, 8, 33  # queries, heads, width of a state, width of a head, stored tokens


@pytest.fixture(params=[6, 3, 1], ids=lambda g: f"{g} key-value heads")
def tensors(request):
    torch.manual_seed(0)
    groups = request.param
    states = torch.randn(S, D)
    key_weight, value_weight = torch.randn(groups, W, D), torch.randn(groups, W, D)
    value_bias = torch.randn(groups, W)
    queries = torch.randn(N, H, W)
    keys = torch.einsum("se,gde->sgd", states, key_weight)
    values = torch.einsum("se,gde->sgd", states, value_weight) + value_bias
    return states, key_weight, value_weight, value_bias, queries, keys, values


def _torch_attention(queries, keys, values):
    repeat = queries.shape[1] // keys.shape[1]
    k, v = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
    return torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), scale=1.0
    ).transpose(0, 1)


def test_dense_attention_equals_torch_attention(tensors):
    *_, queries, keys, values = tensors
    assert torch.allclose(attend_dense(queries, keys, values)[0], _torch_attention(queries, keys, values), atol=1e-5)


def test_folded_queries_and_unfolded_values_equal_dense_attention(tensors):
    states, key_weight, value_weight, value_bias, queries, keys, values = tensors
    weights, log_sum = softmax_weights(fold_queries(queries, key_weight) @ states.T, None, None)
    context = unfold_values(weights @ states, value_weight, value_bias)
    expected, expected_log_sum = attend_dense(queries, keys, values)
    assert torch.allclose(context, expected, atol=1e-4)
    assert torch.allclose(log_sum, expected_log_sum, atol=1e-4)


def test_top_k_attends_only_to_the_k_best(tensors):
    *_, queries, keys, values = tensors
    context, _ = attend_dense(queries, keys, values, top_k=4)
    repeat = H // keys.shape[1]
    for n in range(N):
        for h in range(H):
            scores = keys[:, h // repeat] @ queries[n, h]
            best = scores.topk(4).indices
            expected = scores[best].softmax(0) @ values[best, h // repeat]
            assert torch.allclose(context[n, h], expected, atol=1e-4)


def test_merging_two_parts_equals_one_softmax(tensors):
    *_, queries, keys, values = tensors
    whole, _ = attend_dense(queries, keys, values)
    first = attend_dense(queries, keys[:10], values[:10])
    second = attend_dense(queries, keys[10:], values[10:])
    assert torch.allclose(merge(*first, *second), whole, atol=1e-5)


def test_an_invalid_hit_has_no_weight_even_with_a_softcap():
    scores = torch.tensor([[1.0, 2.0, float("-inf")]])
    valid = torch.tensor([[True, True, False]])
    for softcap in (None, 1.5):
        weights, _ = softmax_weights(scores, valid, softcap)
        assert weights[0, 2] == 0
        assert torch.isclose(weights.sum(), torch.tensor(1.0))


def test_folding_is_cheaper_for_few_queries_only():
    assert folding_is_cheaper(1, 12, 12, 64, 768, 131072)
    assert not folding_is_cheaper(512, 12, 12, 64, 768, 131072)
