"""Choose the kernels for an array of states: C, Triton or torch."""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Protocol, cast

import torch
from torch import Tensor

from . import native, torch_kernels


class Kernels(Protocol):
    """What each of them has. Shapes: N queries, S states, D width of a state, K hits."""

    @staticmethod
    def scan(states: Tensor, scales: Tensor | None, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the k best rows of `states` (S, D) for each of `queries` (N, D): rows and scores, (N, k) each."""

    @staticmethod
    def mix(states: Tensor, scales: Tensor | None, index: Tensor, weights: Tensor) -> Tensor:
        """Weighted sums (N, D), in float32, of states (S, D) at `index` (N, K) with `weights` (N, K)."""


def kernels_for(states: Tensor) -> Kernels:
    """The fastest kernels that can read this array."""
    if native.serves(states):
        return cast(Kernels, native)
    if states.is_cuda and states.dtype in native.KINDS and states.is_contiguous():
        triton_kernels = _triton_kernels(states.device)
        if triton_kernels is not None:
            return triton_kernels
    return cast(Kernels, torch_kernels)


@cache
def _triton_kernels(device: torch.device) -> Kernels | None:
    """The Triton kernels, if they run on this device; compiling them also needs a C compiler."""
    if os.environ.get("UNLIMIFORMER_NATIVE") == "0" or find_spec("triton") is None:
        return None
    from . import triton_kernels

    try:
        for dtype in native.KINDS:
            states = torch.ones(16, 16, device=device).to(dtype)
            row, score = triton_kernels.scan(states, None, torch.ones(1, 16, device=device), 2)
            triton_kernels.mix(states, None, row, score)
    except Exception as error:  # Triton raises errors of many kinds
        warnings.warn(f"the Triton kernels do not run on {device}, torch searches instead: {error}", stacklevel=2)
        return None
    return cast(Kernels, triton_kernels)
