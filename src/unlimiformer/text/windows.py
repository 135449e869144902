"""Cuts a sequence into overlapping windows and says which part of each is kept. Integers only: no tensors, no text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UnlimiformerError


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens [start, end) are read together; the states of [keep_start, keep_end) are kept."""

    start: int
    end: int
    keep_start: int
    keep_end: int


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """How texts are cut: tokens of a window, the share that neighbours read too, and whether the model is causal."""

    window: int
    overlap: float
    causal: bool = False

    def behind(self, prefix: int) -> WindowSpec:
        """What is left of every window for a text, behind a prefix of so many tokens."""
        return replace(self, window=self.window - prefix)

    def windows(self, length: int) -> list[Window]:
        """The windows of a text of so many tokens."""
        return plan_windows(length, self.window, self.overlap, self.causal)


def plan_windows(length: int, window: int, overlap: float = 0.5, causal: bool = False) -> list[Window]:
    """Windows whose kept parts cover [0, length) exactly once, in order.

    `overlap` is the share of a window that its neighbours read too: 0.5 keeps the middle half (paper, section 2.1), or
    the later half of a `causal` model's window, whose tokens know only what stands before them. The first window also
    keeps its left edge. The last is moved back to be full, so that every window but that of a short
    input has the same length and no padding is ever needed.
    """
    if length <= 0:
        raise UnlimiformerError(f"the input has {length} tokens; expected at least one: give a text that is not empty")
    if window <= 0:
        raise UnlimiformerError(f"window is {window}; expected at least 1 token")
    if not 0 <= overlap < 1:
        raise UnlimiformerError(f"overlap is {overlap}; expected 0 <= overlap < 1 (0.5 keeps the middle half)")
    if length <= window:
        return [Window(0, length, 0, length)]
    margin = 0 if causal else min(int(window * overlap / 2), (window - 1) // 2)
    stride = window - 2 * margin if not causal else max(1, window - int(window * overlap))
    windows, kept = [], 0
    for start in range(0, length - window, stride):
        end = start + window
        windows.append(Window(start, end, kept, end - margin))
        kept = end - margin
    windows.append(Window(length - window, length, kept, length))
    return windows
