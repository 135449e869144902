"""Where retrieved tokens stand between the head of the prompt and its tail. Integers only.

Positions are counted from the end of the head. With a document of one window, all of it retrieved, every policy gives
the positions that the plain model has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ...text.windows import WindowSpec


class Positions(Protocol):
    """One policy for documents of `length` tokens that were read in windows with `room` for them."""

    def place(self, tokens: Tensor) -> Tensor:
        """Positions (n,) of tokens (n,) of the document, which are in order."""

    def end(self, tokens: int) -> int:
        """Where the tail begins, if so many tokens were retrieved."""


class Consecutive:
    """Side by side, in their order, whatever lay between them."""

    def __init__(self, length: int, cut: WindowSpec) -> None:
        del length, cut

    def place(self, tokens: Tensor) -> Tensor:
        """0, 1, 2, …"""
        return torch.arange(tokens.shape[0])

    def end(self, tokens: int) -> int:
        """Behind the last of them."""
        return tokens


class AsEncoded:
    """Where they stood in their window: tokens of different windows share positions."""

    def __init__(self, length: int, cut: WindowSpec) -> None:
        windows = cut.windows(length)
        self._at = torch.cat([torch.arange(w.keep_start - w.start, w.keep_end - w.start) for w in windows])
        self._end = min(length, cut.window)

    def place(self, tokens: Tensor) -> Tensor:
        """Their places in their windows."""
        return self._at[tokens]

    def end(self, tokens: int) -> int:
        """Behind a whole window."""
        del tokens
        return self._end


class Rescaled:
    """Their places in the document, shrunk into one window, as the authors' code has it."""

    def __init__(self, length: int, cut: WindowSpec) -> None:
        self._length, self._end = length, min(length, cut.window)

    def place(self, tokens: Tensor) -> Tensor:
        """Rounded down."""
        return tokens * self._end // self._length

    def end(self, tokens: int) -> int:
        """Behind a whole window."""
        del tokens
        return self._end


POSITIONS: dict[str, Callable[[int, WindowSpec], Positions]] = {
    "consecutive": Consecutive,
    "as-encoded": AsEncoded,
    "rescaled": Rescaled,
}
