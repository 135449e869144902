"""The effective weight of linear layers and of layers that replace them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unlimiformer.adapters.linear import effective_weight


def _check_equals_layer(layer: nn.Module, width: int = 12) -> None:
    effective = effective_weight(layer, width, torch.zeros(1))
    assert effective is not None
    weight, bias = effective
    x = torch.randn(5, width)
    assert torch.allclose(x @ weight.T + (0 if bias is None else bias), layer(x), atol=1e-4)


def test_a_plain_layer_returns_its_own_weight():
    layer = nn.Linear(12, 7)
    weight, bias = effective_weight(layer, 12, torch.zeros(1))
    assert weight.data_ptr() == layer.weight.data_ptr()
    assert torch.equal(bias, layer.bias)


def test_a_hook_is_part_of_the_weight():
    layer = nn.Linear(12, 7, bias=False)
    layer.register_forward_hook(lambda module, args, out: 2 * out)
    weight, _ = effective_weight(layer, 12, torch.zeros(1))
    assert torch.allclose(weight, 2 * layer.weight, atol=1e-5)


def test_conv1d_and_sequences_of_linear_layers():
    from transformers.pytorch_utils import Conv1D

    _check_equals_layer(Conv1D(7, 12))
    _check_equals_layer(nn.Sequential(nn.Linear(12, 3), nn.Linear(3, 7)))


@pytest.mark.parametrize("layer", [nn.Sequential(nn.Linear(12, 7), nn.ReLU()), nn.LayerNorm(12)])
def test_a_layer_that_is_not_linear_has_no_weight(layer):
    assert effective_weight(layer, 12, torch.zeros(1)) is None
