"""The effective weight of whatever stands where a linear layer stood: plain, LoRA, quantised, offloaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
_LOW_PRECISION_TOLERANCE = 2e-2


def effective_weight(layer: nn.Module, width: int, like: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """Weight (out, in) and bias (out,) in float32 that give `layer`'s output, or None where it is not linear.

    A layer that is not a plain `nn.Linear` is asked for the image of the identity, so that whatever replaced its
    weights is respected; a check on random input tells a linear layer from one that only looks it (dynamic
    quantisation).
    `like` says on which device and in which dtype the layer takes its input.
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
    """A layer whose stored weight is what its forward multiplies with: no hook, no patch, no tensor subclass."""
    return (
        type(layer) is nn.Linear
        and type(layer.weight.data) is Tensor
        and layer.weight.is_floating_point()
        and layer.weight.device.type != "meta"
        and "forward" not in layer.__dict__
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
    )
