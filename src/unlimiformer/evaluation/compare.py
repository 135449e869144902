"""Runs side by side: one table, and which differences are more than chance."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import UnlimiformerError
from .bootstrap import Columns, Difference, Interval, differences, intervals
from .result import Result

_DECIDED_BY = {"entities": ("entity_model",), "bertscore": ("bertscore_model", "bertscore_layer")}


@dataclass(frozen=True)
class Comparison:
    """Means of each run over the items that all have, and what each is more than the first."""

    items: int
    names: list[str]
    means: list[dict[str, Interval]]
    differences: list[dict[str, Difference]]


def compare(paths: Sequence[str | Path]) -> Comparison:
    """Reads results and compares each with the first, item by item."""
    if len(paths) < 2:
        raise UnlimiformerError(f"{len(paths)} result was given; expected two or more")
    results = [Result.read(path) for path in paths]
    kinds = {(result.task, result.task_version) for result in results}
    if len(kinds) > 1:
        told = ", ".join(f"{name} (version {version})" for name, version in sorted(kinds))
        raise UnlimiformerError(f"the results are of different tasks: {told}; expected one")
    common = [key for key in results[0].keys if all(key in result.keys for result in results)]
    if not common:
        raise UnlimiformerError("the results have no item in common; expected runs over the same data")
    columns = [_columns(result, common) for result in results]
    shared = [name for name in columns[0] if all(name in each for each in columns)]
    if not shared:
        raise UnlimiformerError("the results have no metric in common; evaluate again with the same --metrics")
    for metric, names in _DECIDED_BY.items():
        used = {tuple(result.settings[name] for name in names) for result in results}
        if metric in shared and len(used) > 1:
            values = ", ".join(str(value) for value in sorted(used, key=str))
            raise UnlimiformerError(
                f"the results measure {metric} with different {' and '.join(names)}: {values}; evaluate again with one "
                "(answers are kept)"
            )
    columns = [{name: each[name] for name in shared} for each in columns]
    places = {key: place for place, key in enumerate(results[0].keys)}
    documents = [results[0].documents[places[key]] for key in common]
    return Comparison(
        len(common),
        _names(paths),
        [intervals(each, documents) for each in columns],
        [differences(each, columns[0], documents) for each in columns[1:]],
    )


def _columns(result: Result, keys: Sequence[str]) -> Columns:
    places = {key: place for place, key in enumerate(result.keys)}
    order = [places[key] for key in keys]
    return {name: np.array(scores)[order] for name, scores in result.scores.items()}


def _names(paths: Sequence[str | Path]) -> list[str]:
    """Each path's own part: without what all have before it, or the file's name if that is the same for all."""
    whole = [Path(path).absolute() for path in paths]
    if len({path.name for path in whole}) == 1:
        whole = [path.parent for path in whole]
    if len(set(whole)) < len(whole):
        return [str(path) for path in paths]
    common = Path(os.path.commonpath([path.parent for path in whole]))
    return [str(path.relative_to(common)) for path in whole]
