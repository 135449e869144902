"""The effective weight of layers that stand where a linear layer stood."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unlimiformer.adapters.linear import effective_weight


def _check(layer: nn.Module, width: int = 12) -> None:
    found = effective_weight(layer, width, torch.zeros(1))
    assert found is not None
    weight, bias = found
    x = torch.randn(5, width)
    assert torch.allclose(x @ weight.T + (0 if bias is None else bias), layer(x), atol=1e-4)


def test_plain_layers_share_their_weight():
    layer = nn.Linear(12, 7)
    weight, bias = effective_weight(layer, 12, torch.zeros(1))
    assert weight.data_ptr() == layer.weight.data_ptr()
    assert torch.equal(bias, layer.bias)


def test_a_layer_with_a_hook_is_asked_what_it_does():
    layer = nn.Linear(12, 7, bias=False)
    layer.register_forward_hook(lambda module, args, out: 2 * out)
    weight, _ = effective_weight(layer, 12, torch.zeros(1))
    assert torch.allclose(weight, 2 * layer.weight, atol=1e-5)


def test_conv1d_and_subclasses():
    from transformers.pytorch_utils import Conv1D

    _check(Conv1D(7, 12))
    _check(nn.Sequential(nn.Linear(12, 3), nn.Linear(3, 7)))


@pytest.mark.parametrize("layer", [nn.Sequential(nn.Linear(12, 7), nn.ReLU()), nn.LayerNorm(12)])
def test_what_is_not_linear_is_not_folded(layer):
    assert effective_weight(layer, 12, torch.zeros(1)) is None
