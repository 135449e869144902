"""The effective weight of a linear layer or of what replaced it: plain, LoRA, quantised or offloaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
_LOW_PRECISION_TOLERANCE = 2e-2


def effective_weight(layer: nn.Module, width: int, like: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """Return the weight (out, in) and bias (out,) in float32 that give the layer's output; None if it is not linear.

    A layer other than a plain `nn.Linear` is called with the identity matrix, which gives the weight however it is
    computed. A second call with random input checks that the layer is linear (with dynamic quantisation it is not).

    Parameters
    ----------
    width : numbers in the layer's input.
    like : a tensor with the device and dtype of the layer's input.
    """
    if isinstance(layer, nn.Linear) and _is_plain(layer):
        return layer.weight.float(), None if layer.bias is None else layer.bias.float()
    with torch.no_grad():
        origin = layer(like.new_zeros(1, width)).float()
        weight = (layer(torch.eye(width, dtype=like.dtype, device=like.device)).float() - origin).T
        probe = torch.randn(8, width, generator=torch.Generator().manual_seed(0)).to(like)
        expected = layer(probe).float()
        error = (probe.float() @ weight.T + origin - expected).abs().max()
        allowed = _TOLERANCE.get(like.dtype, _LOW_PRECISION_TOLERANCE) * expected.abs().max()
    return (weight, origin[0]) if error <= allowed else None


def _is_plain(layer: nn.Linear) -> bool:
    """Whether the layer's forward multiplies with its stored weight: no hook, no patch, no tensor subclass."""
    return (
        type(layer) is nn.Linear
        and type(layer.weight.data) is Tensor
        and layer.weight.is_floating_point()
        and layer.weight.device.type != "meta"
        and "forward" not in layer.__dict__
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
    )
