"""The one place that imports the plotting library: late, without a screen, with a clear error where it is missing."""

from __future__ import annotations

from typing import Any

from ..errors import UnlimiformerError


def pyplot() -> Any:
    """Matplotlib's pyplot, drawing to files."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plots
    except ImportError:
        raise UnlimiformerError(
            "pictures need the package `matplotlib`; install it, or unlimiformer[evaluate]"
        ) from None
    return plots
