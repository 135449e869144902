"""Quality against the allowed input length (figure 3 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..evaluation import EvaluationSettings, evaluate
from ..memory.encode import Progress
from ..utils.plotting import pyplot
from .output import FigureRow, write_figure


def run(
    settings: EvaluationSettings,
    limits: Sequence[int | None],
    metric: str | None,
    folder: Path,
    log: Callable[[str], None],
    progress: Progress,
) -> tuple[list[FigureRow], list[Path]]:
    """Evaluate the truncated model, then the method of `settings` with every input limit.

    Every evaluation is stored in `folder`/runs, so that the same call continues after an interruption.

    Parameters
    ----------
    limits : tokens of each document that the method may use; None for all of them
    metric : the metric that is plotted; None for the first one of the task
    """
    if settings.method == "truncate":
        raise InputError("method is 'truncate', which is always drawn for comparison; choose another method")
    pyplot()  # a missing package is reported before the long evaluation
    rows: list[FigureRow] = []
    for method, limit in [("truncate", None), *((settings.method, limit) for limit in limits)]:
        name = method if method == "truncate" else f"{method}-{limit or 'all'}"
        log(name)
        run_settings = replace(settings, method=method, input_limit=limit)
        result = evaluate(run_settings, folder / "runs" / name, log, progress)
        plotted = metric or next(iter(result.metrics))
        if plotted not in result.metrics:
            raise InputError(f"metric is {plotted!r}; the runs have: {', '.join(result.metrics)}")
        mean = result.metrics[plotted]
        rows.append({"method": method, "input_limit": limit or "all", "metric": plotted, **vars(mean)})
    return rows, write_figure(folder, "quality", rows, lambda _, axes: _draw(axes, rows))


def _draw(axes: Any, rows: Sequence[FigureRow]) -> None:
    truncated, *limited = rows
    positions = range(len(limited))
    values = [row["value"] for row in limited]
    errors = [[row["value"] - row["low"] for row in limited], [row["high"] - row["value"] for row in limited]]
    axes.errorbar(positions, values, yerr=errors, marker="o", capsize=3, label=limited[0]["method"])
    axes.axhline(truncated["value"], color="tab:red", linestyle="--", label="truncated")
    labels = [row["input_limit"] if row["input_limit"] == "all" else f"{row['input_limit']:,}" for row in limited]
    axes.set_xticks(positions, labels)
    axes.set(xlabel="input limit (tokens of a document)", ylabel=truncated["metric"])
    axes.legend()
