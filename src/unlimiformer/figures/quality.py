"""Quality against the allowed input length (the paper's figure 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import UnlimiformerError
from ..evaluation import EvaluationSettings, evaluate
from ..memory.encode import Progress
from ..utils.plotting import pyplot
from .output import FigureRow, write


def run(
    settings: EvaluationSettings,
    limits: Sequence[int | None],
    metric: str | None,
    folder: Path,
    log: Callable[[str], None],
    progress: Progress,
) -> tuple[list[FigureRow], list[Path]]:
    """Evaluates with every limit (None: all of each document) and truncated; runs are kept in `folder`/runs."""
    if settings.method == "truncate":
        raise UnlimiformerError("method is 'truncate', which is drawn beside the others; expected another")
    pyplot()  # what is missing is said before any work
    rows: list[FigureRow] = []
    for method, limit in [("truncate", None), *((settings.method, limit) for limit in limits)]:
        name = method if method == "truncate" else f"{method}-{limit or 'all'}"
        log(name)
        changed = replace(settings, method=method, input_limit=limit)
        result = evaluate(changed, folder / "runs" / name, log, progress)
        chosen = metric or next(iter(result.metrics))
        if chosen not in result.metrics:
            raise UnlimiformerError(f"metric is {chosen!r}; the runs have: {', '.join(result.metrics)}")
        mean = result.metrics[chosen]
        rows.append({"method": method, "input_limit": limit or "all", "metric": chosen, **vars(mean)})
    return rows, write(folder, "quality", rows, lambda _, axes: _draw(axes, rows))


def _draw(axes: Any, rows: Sequence[FigureRow]) -> None:
    plain, *ours = rows
    places = range(len(ours))
    values = [row["value"] for row in ours]
    spread = [[row["value"] - row["low"] for row in ours], [row["high"] - row["value"] for row in ours]]
    axes.errorbar(places, values, yerr=spread, marker="o", capsize=3, label=ours[0]["method"])
    axes.axhline(plain["value"], color="tab:red", linestyle="--", label="truncated")
    labels = [row["input_limit"] if row["input_limit"] == "all" else f"{row['input_limit']:,}" for row in ours]
    axes.set_xticks(places, labels)
    axes.set(xlabel="tokens of a document that may be seen", ylabel=plain["metric"])
    axes.legend()
