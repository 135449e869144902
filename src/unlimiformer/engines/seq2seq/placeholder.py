"""The encoder's output for a long input: one state a row, whose numbers name the row's memory.

`generate` may repeat and reorder it as it likes: every cross-attention reads from it which memory a row belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from ...errors import UnlimiformerError
from ...memory.memory import Memory

_MARK = (101.0, 7.0, 83.0, 59.0)  # whole numbers below 128 survive every floating dtype
_DIGITS = 4
_BASE = 128
_HEAD = len(_MARK) + _DIGITS


@dataclass
class PlaceholderOutput(BaseModelOutput):
    """An encoder's output; the last fields are those that some families look for."""

    global_attentions: Any = None
    router_logits: Any = None


class PlaceholderRegistry:
    """Knows which memory a placeholder's row stands for."""

    def __init__(self) -> None:
        self._memories: WeakValueDictionary[int, Memory] = WeakValueDictionary()
        self._last: list[Memory] = []
        self._seen: tuple[Tensor, int | None, list[Memory] | None] | None = None

    def placeholder(self, memories: list[Memory], width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A state (B, 1, D) for each memory."""
        if width < _HEAD:
            raise UnlimiformerError(f"the model's states have {width} numbers; expected at least {_HEAD}")
        rows = torch.zeros((len(memories), 1, width))
        for row, memory in zip(rows[:, 0], memories, strict=True):
            self._memories[memory.key] = memory
            digits = [memory.key // _BASE**place % _BASE for place in range(_DIGITS)]
            row[:_HEAD] = torch.tensor([*_MARK, *map(float, digits)])
        self._last = memories  # alive until the next long input; a caller who needs them longer holds them
        return rows.to(device, dtype)

    def memories(self, states: Tensor | None) -> list[Memory] | None:
        """The memory of each row of a placeholder (B, 1, D); None for real states."""
        if states is None or states.shape[1] != 1 or states.shape[2] < _HEAD:
            return None
        version = None if states.is_inference() else states._version  # inference tensors are never changed in place
        seen = self._seen
        if seen is not None and seen[0] is states and seen[1] == version:
            return seen[2]
        found = self._read(states.detach()[:, 0].float().cpu())
        self._seen = (states, version, found)
        return found

    def clear(self) -> None:
        """Forgets all memories that nobody else holds."""
        self._last, self._seen = [], None

    def _read(self, rows: Tensor) -> list[Memory] | None:
        marked = (rows[:, : len(_MARK)] == torch.tensor(_MARK)).all() and (rows[:, _HEAD:] == 0).all()
        if not marked:
            return None
        keys = [sum(int(d) * _BASE**place for place, d in enumerate(row[len(_MARK) : _HEAD])) for row in rows]
        try:
            return [self._memories[key] for key in keys]
        except KeyError:
            raise UnlimiformerError(
                "the memory behind these encoder outputs is gone: another long input was read since. "
                "Encode with index() and hold the Memory for as long as it is needed"
            ) from None
