"""Compare evaluation results on the items that they share, with the significance of the differences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputError
from .bootstrap import Columns, Difference, Interval, differences, intervals
from .result import Result

_SETTINGS_OF_METRIC = {"entities": ("entity_model",), "bertscore": ("bertscore_model", "bertscore_layer")}


@dataclass(frozen=True)
class Comparison:
    """Results over their shared items.

    Parameters
    ----------
    items : number of shared items.
    names : a short name of each result.
    means : mean and interval of each result, by metric.
    differences : each result but the first, minus the first.
    """

    items: int
    names: list[str]
    means: list[dict[str, Interval]]
    differences: list[dict[str, Difference]]


def compare(paths: Sequence[str | Path]) -> Comparison:
    """Read two or more results and compare each with the first, item by item."""
    if len(paths) < 2:
        raise InputError(f"{len(paths)} result was given; expected two or more")
    results = [Result.read(path) for path in paths]
    versions = {(result.task, result.task_version) for result in results}
    if len(versions) > 1:
        listed = ", ".join(f"{name} (version {version})" for name, version in sorted(versions))
        raise InputError(f"the results are of different tasks: {listed}; expected one")
    keys = [key for key in results[0].keys if all(key in result.keys for result in results)]
    if not keys:
        raise InputError("the results have no item in common; expected runs over the same data")
    all_columns = [_select_columns(result, keys) for result in results]
    metrics = [name for name in all_columns[0] if all(name in columns for columns in all_columns)]
    if not metrics:
        raise InputError("the results have no metric in common; evaluate again with the same --metrics")
    _check_same_settings(results, metrics)
    shared = [{name: columns[name] for name in metrics} for columns in all_columns]
    document_of = dict(zip(results[0].keys, results[0].documents, strict=True))
    documents = [document_of[key] for key in keys]
    return Comparison(
        len(keys),
        _short_names(paths),
        [intervals(columns, documents) for columns in shared],
        [differences(columns, shared[0], documents) for columns in shared[1:]],
    )


def _check_same_settings(results: Sequence[Result], metrics: Sequence[str]) -> None:
    """Raise if a metric was computed with different models."""
    for metric, names in _SETTINGS_OF_METRIC.items():
        values = {tuple(result.settings[name] for name in names) for result in results}
        if metric in metrics and len(values) > 1:
            listed = ", ".join(str(value) for value in sorted(values, key=str))
            raise InputError(
                f"the results measure {metric} with different {' and '.join(names)}: {listed}; evaluate again with one "
                "of them (answers are kept)"
            )


def _select_columns(result: Result, keys: Sequence[str]) -> Columns:
    row_of = {key: row for row, key in enumerate(result.keys)}
    rows = [row_of[key] for key in keys]
    return {name: np.array(scores)[rows] for name, scores in result.scores.items()}


def _short_names(paths: Sequence[str | Path]) -> list[str]:
    """Name each path without the parent folder that all share, and without the file name if all have the same."""
    absolute = [Path(path).absolute() for path in paths]
    if len({path.name for path in absolute}) == 1:
        absolute = [path.parent for path in absolute]
    if len(set(absolute)) < len(absolute):
        return [str(path) for path in paths]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    return [str(path.relative_to(common)) for path in absolute]
