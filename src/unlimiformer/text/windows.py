"""Cut a sequence into overlapping windows and say which part of each is kept. Integers only: no tensors, no text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import InputError


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens [start, end) are encoded together; the states of [keep_start, keep_end) are kept."""

    start: int
    end: int
    keep_start: int
    keep_end: int


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """How a sequence is cut into windows.

    Parameters
    ----------
    window : tokens of a window.
    overlap : share of a window that its neighbours encode too.
    causal : whether a token sees only the tokens before it.
    """

    window: int
    overlap: float
    causal: bool = False

    def after_prefix(self, prefix: int) -> WindowSpec:
        """Return the spec of what is left of each window after a prefix of `prefix` tokens."""
        return replace(self, window=self.window - prefix)

    def windows(self, length: int) -> list[Window]:
        """Cut a sequence of `length` tokens."""
        return plan_windows(length, self.window, self.overlap, self.causal)


def plan_windows(length: int, window: int, overlap: float = 0.5, causal: bool = False) -> list[Window]:
    """Plan windows whose kept parts cover [0, length) exactly once, in order.

    The first window also keeps its left edge. The last one is moved back to be full, so that every window has the same
    length and needs no padding, unless the input is shorter than one window.

    Parameters
    ----------
    length : tokens of the sequence.
    window : tokens of a window.
    overlap : share of a window that its neighbours encode too. 0.5 keeps the middle half (paper, section 2.1).
    causal : the later part of a window is kept instead of its middle, as each token sees only the tokens before it.
    """
    if length <= 0:
        raise InputError(f"the input has {length} tokens; expected at least one: give a text that is not empty")
    if window <= 0:
        raise InputError(f"window is {window}; expected at least 1 token")
    if not 0 <= overlap < 1:
        raise InputError(f"overlap is {overlap}; expected 0 <= overlap < 1 (0.5 keeps the middle half)")
    if length <= window:
        return [Window(0, length, 0, length)]
    margin = 0 if causal else min(int(window * overlap / 2), (window - 1) // 2)
    stride = window - 2 * margin if not causal else max(1, window - int(window * overlap))
    windows, covered = [], 0
    for start in range(0, length - window, stride):
        end = start + window
        windows.append(Window(start, end, covered, end - margin))
        covered = end - margin
    windows.append(Window(length - window, length, covered, length))
    return windows
