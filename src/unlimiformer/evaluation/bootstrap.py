"""How sure a mean is, and a difference of two: by drawing again, many times.

What is drawn are documents, each with all its questions: answers about one text are alike, and drawn one by one they
would make a mean look surer than it is. Where all questions are about one document, questions are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .metrics.rouge import KINDS, geometric

DRAWS = 10_000
_AT_ONCE = 500  # draws that are held
Columns = dict[str, np.ndarray]
"""Scores (n,) of all items, by what they measure; NaN where an item has none."""


@dataclass(frozen=True)
class Interval:
    """A mean, and the bounds that 95 % of the drawn means lie between."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A mean less another on the same items, its bounds, and how likely so large a one is by chance (two-sided)."""

    value: float
    low: float
    high: float
    p: float


def means(columns: Columns) -> dict[str, float]:
    """Of what has a score; with the geometric mean of ROUGE where its parts are there."""
    found = {name: float(np.nanmean(values)) for name, values in columns.items() if not np.isnan(values).all()}
    return _completed(found)


def intervals(
    columns: Columns, documents: Sequence[int] | None = None, draws: int = DRAWS, seed: int = 0
) -> dict[str, Interval]:
    """For every mean; `documents` numbers the document of each item."""
    drawn = _drawn(columns, documents, draws, seed)
    return {name: Interval(mean, *_bounds(drawn[name])) for name, mean in means(columns).items()}


def differences(
    one: Columns, other: Columns, documents: Sequence[int] | None = None, draws: int = DRAWS, seed: int = 0
) -> dict[str, Difference]:
    """Of the means of `one` less those of `other`, whose items are the same and in the same order."""
    first, second = means(one), means(other)
    ours, theirs = (_drawn(columns, documents, draws, seed) for columns in (one, other))
    found = {}
    for name in (name for name in first if name in second):
        drawn = ours[name] - theirs[name]
        drawn = drawn[~np.isnan(drawn)]
        wrong_side = min((drawn <= 0).sum(), (drawn >= 0).sum())
        p = min(1.0, 2 * (wrong_side + 1) / (len(drawn) + 1))
        found[name] = Difference(first[name] - second[name], *_bounds(drawn), float(p))
    return found


def _completed(found: dict) -> dict:
    return {**found, "rouge": geometric(found)} if set(KINDS) <= set(found) else found


def _drawn(columns: Columns, documents: Sequence[int] | None, draws: int, seed: int) -> Columns:
    """Means (draws,) of what was drawn; the same for one seed."""
    count = len(next(iter(columns.values())))
    groups = np.arange(count)
    if documents is not None and len(set(documents)) > 1:
        groups = np.unique(documents, return_inverse=True)[1]
    units = groups.max() + 1
    sums = {name: np.bincount(groups, np.nan_to_num(values), units) for name, values in columns.items()}
    counts = {name: np.bincount(groups, ~np.isnan(values), units) for name, values in columns.items()}
    rng = np.random.default_rng(seed)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in columns}
    for start in range(0, draws, _AT_ONCE):
        chosen = rng.integers(units, size=(min(_AT_ONCE, draws - start), units))
        for name in columns:
            with np.errstate(invalid="ignore"):
                parts[name].append(sums[name][chosen].sum(1) / counts[name][chosen].sum(1))
    return _completed({name: np.concatenate(each) for name, each in parts.items()})


def _bounds(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    return float(low), float(high)
