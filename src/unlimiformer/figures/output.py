"""A figure's two files: rows as CSV, and the picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import UnlimiformerError
from ..utils.files import atomic_write
from ..utils.plotting import pyplot

FigureRow = dict[str, Any]


def write(
    folder: Path, name: str, rows: Sequence[FigureRow], draw: Callable[[Any, Any], None], wide: int = 1
) -> list[Path]:
    """`draw` is given the figure and its axes (one, or `wide` in a row)."""
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    data, picture = folder / f"{name}.csv", folder / f"{name}.png"
    plots = pyplot()
    figure, axes = plots.subplots(1, wide, figsize=(6 * wide, 4), layout="constrained")
    draw(figure, axes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(data, table.getvalue())
        figure.savefig(picture, dpi=120)
    except OSError as error:
        raise UnlimiformerError(f"cannot write to {folder}: {error.strerror}") from None
    finally:
        plots.close(figure)
    return [data, picture]
