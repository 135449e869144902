"""Check that the parts of a stored memory belong together, so that no row, token or place points outside its array."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..datastore import DTYPES
from ..errors import MemoryMismatchError
from ..text.windows import WindowSpec

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_parts(
    arrays: dict[str, Tensor], about: dict[str, Any], window_spec: WindowSpec, prefix: tuple[int, ...]
) -> None:
    """Raise unless the arrays have the dtypes and shapes of a memory, all of the same number of rows.

    Parameters
    ----------
    arrays : all arrays of a memory, by name.
    about : the description of the memory.
    window_spec, prefix : how the text was cut, and token ids before every window.
    """
    states, ids = arrays["states"], arrays["token_ids"]
    _require(states.ndim == 2 and states.dtype in DTYPES.values() and states.numel() > 0, "states")
    rows, width = states.shape
    _require(ids.shape == (rows,) and ids.dtype is torch.int32 and int(ids.min()) >= 0, "token_ids")
    _require(tuple(ids[: len(prefix)].tolist()) == prefix, "prefix")
    scales = arrays.get("scales")
    _require((scales is not None) == (states.dtype is torch.int8), "scales")
    _require(scales is None or (scales.shape == (rows,) and scales.dtype is torch.float32), "scales")
    first_window = arrays.get("first_window")
    if first_window is not None:
        fits = first_window.ndim == 2 and first_window.shape[1] == width
        _require(fits and 0 < first_window.shape[0] <= rows and first_window.dtype in _FLOATS, "first_window")
    text, offsets = arrays.get("text"), arrays.get("offsets")
    _require(text is None or (text.ndim == 1 and text.dtype is torch.uint8), "text")
    _require(offsets is None or text is not None, "text")
    if offsets is not None and text is not None:
        _check_offsets(offsets, rows, text.shape[0])
    _check_counts(about, rows - len(prefix), window_spec.after_prefix(len(prefix)))


def _check_offsets(offsets: Tensor, rows: int, text_bytes: int) -> None:
    """Characters of a text of so many bytes, which has at most as many characters."""
    _require(offsets.shape == (rows, 2) and offsets.dtype is torch.int64, "offsets")
    in_order = int((offsets[:, 1] - offsets[:, 0]).min()) >= 0
    _require(int(offsets[:, 0].min()) >= 0 and int(offsets[:, 1].max()) <= text_bytes and in_order, "offsets")


def _check_counts(about: dict[str, Any], text_tokens: int, room: WindowSpec) -> None:
    windows, batch_size = about["windows"], about["batch_size"]
    _require(_is_count(windows) and room.window >= 1 and text_tokens >= 1, "windows")
    _require(windows > 1 or text_tokens <= room.window, "windows")  # one window is attended to as a whole
    _require(batch_size is None or _is_count(batch_size), "batch_size")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _require(fits: bool, name: str) -> None:
    if not fits:
        raise MemoryMismatchError(
            f"the memory's {name} do not fit its other parts: it is damaged; index the text again"
        )
