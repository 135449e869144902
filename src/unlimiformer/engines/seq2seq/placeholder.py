"""The encoder's output for a long input: a placeholder of one state per row, whose numbers encode the memory's key.

`generate` repeats and reorders the placeholder for beams; every cross-attention decodes from it which memory a row
belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from ...errors import InputError, UnsupportedModelError
from ...memory import Memory

_MARK = (101.0, 7.0, 83.0, 59.0)  # integers below 128 survive every floating dtype
_DIGITS = 4
_BASE = 128
_CODE_LENGTH = len(_MARK) + _DIGITS


@dataclass
class PlaceholderOutput(BaseModelOutput):
    """An encoder's output; the further fields are those that some families look for."""

    global_attentions: Any = None
    router_logits: Any = None


class PlaceholderRegistry:
    """Makes placeholders for memories and finds the memory of each row of a placeholder."""

    def __init__(self) -> None:
        self._memories: WeakValueDictionary[int, Memory] = WeakValueDictionary()
        self._latest: list[Memory] = []
        self._cached: tuple[Tensor, int | None, list[Memory] | None] | None = None

    def create(self, memories: list[Memory], width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A placeholder (B, 1, D) with one row per memory."""
        if width < _CODE_LENGTH:
            raise UnsupportedModelError(f"the model's states have {width} numbers; expected at least {_CODE_LENGTH}")
        rows = torch.zeros((len(memories), 1, width))
        for row, memory in zip(rows[:, 0], memories, strict=True):
            self._memories[memory.key] = memory
            digits = [memory.key // _BASE**place % _BASE for place in range(_DIGITS)]
            row[:_CODE_LENGTH] = torch.tensor([*_MARK, *map(float, digits)])
        self._latest = memories  # kept alive until the next long input; callers hold what they need longer
        return rows.to(device, dtype)

    def find(self, states: Tensor | None) -> list[Memory] | None:
        """The memory of each row of a placeholder (B, 1, D); None for real states."""
        if states is None or states.shape[1] != 1 or states.shape[2] < _CODE_LENGTH:
            return None
        version = None if states.is_inference() else states._version  # inference tensors are never changed in place
        cached = self._cached
        if cached is not None and cached[0] is states and cached[1] == version:
            return cached[2]
        memories = self._decode(states.detach()[:, 0].float().cpu())
        self._cached = (states, version, memories)
        return memories

    def clear(self) -> None:
        """Release the memories that nothing else refers to."""
        self._latest, self._cached = [], None

    def _decode(self, rows: Tensor) -> list[Memory] | None:
        is_placeholder = (rows[:, : len(_MARK)] == torch.tensor(_MARK)).all() and (rows[:, _CODE_LENGTH:] == 0).all()
        if not is_placeholder:
            return None
        keys = [sum(int(d) * _BASE**place for place, d in enumerate(row[len(_MARK) : _CODE_LENGTH])) for row in rows]
        try:
            return [self._memories[key] for key in keys]
        except KeyError:
            raise InputError(
                "the memory behind these encoder outputs is gone: another long input was encoded since. "
                "Encode with index() and hold the Memory for as long as it is needed"
            ) from None
