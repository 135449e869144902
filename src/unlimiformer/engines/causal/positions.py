"""Which positions retrieved tokens get between the prefix of the prompt and its suffix. Integers only.

Positions are counted from the end of the prefix. For a document of one window, all of it retrieved, every policy gives
the positions of the plain model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ...text.windows import WindowSpec


class Positions(Protocol):
    """A policy for documents of one length that were encoded with one window specification."""

    def place(self, tokens: Tensor) -> Tensor:
        """Positions (n,) of tokens (n,) of the document, which are in order."""

    def end(self, tokens: int) -> int:
        """Position at which the suffix begins if this many tokens were retrieved."""


class Consecutive:
    """Positions 0, 1, 2, … in document order, without gaps."""

    def __init__(self, length: int, spec: WindowSpec) -> None:
        del length, spec

    def place(self, tokens: Tensor) -> Tensor:
        """Count from 0."""
        return torch.arange(tokens.shape[0])

    def end(self, tokens: int) -> int:
        """Behind the last retrieved token."""
        return tokens


class AsEncoded:
    """Positions that tokens had in their window; tokens of different windows share positions."""

    def __init__(self, length: int, spec: WindowSpec) -> None:
        windows = spec.windows(length)
        self._position = torch.cat([torch.arange(w.keep_start - w.start, w.keep_end - w.start) for w in windows])
        self._end = min(length, spec.window)

    def place(self, tokens: Tensor) -> Tensor:
        """Positions inside the windows."""
        return self._position[tokens]

    def end(self, tokens: int) -> int:
        """Behind one whole window."""
        del tokens
        return self._end


class Rescaled:
    """Positions in the document, scaled down to one window, as in the authors' code."""

    def __init__(self, length: int, spec: WindowSpec) -> None:
        self._length, self._end = length, min(length, spec.window)

    def place(self, tokens: Tensor) -> Tensor:
        """Scaled positions, rounded down."""
        return tokens * self._end // self._length

    def end(self, tokens: int) -> int:
        """Behind one whole window."""
        del tokens
        return self._end


POSITIONS: dict[str, Callable[[int, WindowSpec], Positions]] = {
    "consecutive": Consecutive,
    "as-encoded": AsEncoded,
    "rescaled": Rescaled,
}
