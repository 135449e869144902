"""Imports matplotlib: only where a plot is drawn, without a display, with a clear error where it is missing."""

from __future__ import annotations

from typing import Any

from .optional import require


def pyplot(extra: str = "evaluate") -> Any:
    """Return `matplotlib.pyplot`, which draws to files; `extra` is the one that a missing-package error names."""
    require("matplotlib", extra, "drawing a plot").use("Agg")
    return require("matplotlib.pyplot", extra, "drawing a plot")
