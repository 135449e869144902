"""Confidence intervals of means, and of differences of means, by the bootstrap.

Documents are resampled, each with all its questions: answers about one text are correlated, and resampling them one by
one would give intervals that are too narrow. If all questions are about one document, questions are resampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .metrics.rouge import KINDS, geometric_mean

DRAWS = 10_000
_DRAWS_PER_BATCH = 500  # limits the memory of the drawn indices
Columns = dict[str, np.ndarray]
"""Scores (n,) of all items by the name of the metric; NaN where an item has no score."""


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A difference of two means over the same items, the bounds of its 95 % interval, and its two-sided p-value."""

    value: float
    low: float
    high: float
    p: float


def means(columns: Columns) -> dict[str, float]:
    """Return the mean of every column that has a score, and the geometric mean of ROUGE if its columns are present."""
    present = {name: float(np.nanmean(values)) for name, values in columns.items() if not np.isnan(values).all()}
    return _add_rouge(present)


def intervals(
    columns: Columns, documents: Sequence[int] | None = None, draws: int = DRAWS, seed: int = 0
) -> dict[str, Interval]:
    """Return the confidence interval of every mean; `documents` gives the number of each item's document."""
    if not columns:
        return {}
    resampled = _resample_means(columns, documents, draws, seed)
    return {name: Interval(mean, *_bounds(resampled[name])) for name, mean in means(columns).items()}


def differences(
    one: Columns, other: Columns, documents: Sequence[int] | None = None, draws: int = DRAWS, seed: int = 0
) -> dict[str, Difference]:
    """Return the means of `one` minus those of `other`; both have the same items in the same order."""
    one_means, other_means = means(one), means(other)
    one_resampled, other_resampled = (_resample_means(columns, documents, draws, seed) for columns in (one, other))
    results = {}
    for name in (name for name in one_means if name in other_means):
        drawn = one_resampled[name] - other_resampled[name]
        drawn = drawn[~np.isnan(drawn)]
        opposite_sign = min((drawn <= 0).sum(), (drawn >= 0).sum())
        p = min(1.0, 2 * (opposite_sign + 1) / (len(drawn) + 1))
        results[name] = Difference(one_means[name] - other_means[name], *_bounds(drawn), float(p))
    return results


def _add_rouge(by_name: dict) -> dict:
    return {**by_name, "rouge": geometric_mean(by_name)} if set(KINDS) <= set(by_name) else by_name


def _resample_means(columns: Columns, documents: Sequence[int] | None, draws: int, seed: int) -> Columns:
    """Return the means (draws,) of resampled documents; the draws depend on the seed alone."""
    count = len(next(iter(columns.values())))
    groups = np.arange(count)
    if documents is not None and len(set(documents)) > 1:
        groups = np.unique(documents, return_inverse=True)[1]
    units = groups.max() + 1
    sums = {name: np.bincount(groups, np.nan_to_num(values), units) for name, values in columns.items()}
    counts = {name: np.bincount(groups, ~np.isnan(values), units) for name, values in columns.items()}
    rng = np.random.default_rng(seed)
    batches: dict[str, list[np.ndarray]] = {name: [] for name in columns}
    for start in range(0, draws, _DRAWS_PER_BATCH):
        drawn = rng.integers(units, size=(min(_DRAWS_PER_BATCH, draws - start), units))
        for name in columns:
            with np.errstate(invalid="ignore"):  # 0 / 0 where no drawn document has a score
                batches[name].append(sums[name][drawn].sum(1) / counts[name][drawn].sum(1))
    return _add_rouge({name: np.concatenate(parts) for name, parts in batches.items()})


def _bounds(resampled: np.ndarray) -> tuple[float, float]:
    low, high = np.nanpercentile(resampled, (2.5, 97.5))
    return float(low), float(high)
