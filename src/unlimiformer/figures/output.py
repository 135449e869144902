"""Writes the two files of a figure: its rows as CSV and its plot as PNG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..utils.csv_text import to_csv
from ..utils.files import atomic_write, friendly_os_errors
from ..utils.plotting import pyplot

FigureRow = dict[str, Any]


def write_figure(
    folder: Path, name: str, rows: Sequence[FigureRow], draw: Callable[[Any, Any], None], panels: int = 1
) -> list[Path]:
    """Write `folder`/`name`.csv and `folder`/`name`.png and return their paths.

    Parameters
    ----------
    draw : called with the matplotlib figure and its axes (an array of axes if there are several panels)
    panels : number of plots next to each other
    """
    csv_path, png_path = folder / f"{name}.csv", folder / f"{name}.png"
    plt = pyplot()
    figure, axes = plt.subplots(1, panels, figsize=(6 * panels, 4), layout="constrained")
    try:
        draw(figure, axes)
        with friendly_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            atomic_write(csv_path, to_csv(rows))
            figure.savefig(png_path, dpi=120)
    finally:
        plt.close(figure)
    return [csv_path, png_path]
