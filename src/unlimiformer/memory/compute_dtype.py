"""In which type an encoder's matrix products are computed: the setting `compute_dtype`."""

from __future__ import annotations

import time
from functools import cache
from threading import Lock

import torch
from torch import nn

from ..adapters.base import input_device, module_dtype

_ROWS, _REPEATS = 512, 5  # of the product that is timed; a first one is not counted
_WIDTH = 256  # an encoder with narrower layers spends its time on other things
_GAIN = 1.3  # how much faster bfloat16 must be
_MEASURING = Lock()


def resolve_compute_dtype(setting: str | None, encoder: nn.Module) -> str | None:
    """The setting itself, or for "auto" bfloat16 if this device multiplies it faster than the encoder's float32."""
    if setting != "auto":
        return setting
    if module_dtype(encoder) != torch.float32:
        return None
    shapes = [tuple(layer.weight.shape) for layer in encoder.modules() if isinstance(layer, nn.Linear)]
    rows, columns = max(shapes, key=min, default=(0, 0))
    if min(rows, columns) < _WIDTH:
        return None
    return "bfloat16" if _is_bfloat16_faster(input_device(encoder), rows, columns) else None


def _is_bfloat16_faster(device: torch.device, rows: int, columns: int) -> bool:
    """Whether a product with a matrix of this shape takes less time in bfloat16; measured once in a process."""
    with _MEASURING:
        return _measure(device, rows, columns)


@cache
def _measure(device: torch.device, rows: int, columns: int) -> bool:
    if device.type == "meta":
        return False
    types = (torch.float32, torch.bfloat16)
    try:
        times = [[_time_product(device, dtype, rows, columns) for dtype in types] for _ in range(1 + _REPEATS)]
    except (RuntimeError, TypeError):  # the device has no bfloat16
        return False
    in_float32, in_bfloat16 = (min(of_type) for of_type in zip(*times[1:], strict=True))
    return in_bfloat16 * _GAIN < in_float32


def _time_product(device: torch.device, dtype: torch.dtype, rows: int, columns: int) -> float:
    """Seconds of one product."""
    states = torch.ones(_ROWS, columns, device=device, dtype=dtype)
    weight = torch.ones(rows, columns, device=device, dtype=dtype)
    float(weight[0, 0])  # waits for an accelerator
    started = time.perf_counter()
    float((states @ weight.T)[0, 0])
    return time.perf_counter() - started
