"""How sure a mean is, and a difference of two: by drawing the examples again, many times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .metrics.rouge import KINDS, geometric

DRAWS = 10_000
_AT_ONCE = 500  # draws that are held
Columns = dict[str, np.ndarray]
"""Scores (n,) of all examples, by what they measure."""


@dataclass(frozen=True)
class Interval:
    """A mean, and the bounds that 95 % of the drawn means lie between."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A mean less another on the same examples, its bounds, and how likely so large a one is by chance (two-sided)."""

    value: float
    low: float
    high: float
    p: float


def means(columns: Columns) -> Columns:
    """Over the last axis, of what has a score; with the geometric mean of ROUGE where its parts are there."""
    found = {name: _mean(values) for name, values in columns.items() if not np.isnan(values).all()}
    if set(KINDS) <= set(found):
        found["rouge"] = geometric(found)
    return found


def intervals(columns: Columns, draws: int = DRAWS, seed: int = 0) -> dict[str, Interval]:
    """For every mean."""
    drawn = _drawn(columns, draws, seed)
    return {name: Interval(float(mean), *_bounds(drawn[name])) for name, mean in means(columns).items()}


def differences(one: Columns, other: Columns, draws: int = DRAWS, seed: int = 0) -> dict[str, Difference]:
    """Of the means of `one` less those of `other`, whose examples are the same and in the same order."""
    first, second = means(one), means(other)
    ours, theirs = _drawn(one, draws, seed), _drawn(other, draws, seed)
    found = {}
    for name in first.keys() & second.keys():
        drawn = ours[name] - theirs[name]
        wrong_side = min((drawn <= 0).sum(), (drawn >= 0).sum())
        p = min(1.0, 2 * (wrong_side + 1) / (draws + 1))
        found[name] = Difference(float(first[name] - second[name]), *_bounds(drawn), p)
    return found


def _mean(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.nansum(values, axis=-1) / (~np.isnan(values)).sum(axis=-1)


def _drawn(columns: Columns, draws: int, seed: int) -> Columns:
    """Means (draws,) of examples that were drawn again; the same examples for one seed."""
    rng = np.random.default_rng(seed)
    count = len(next(iter(columns.values())))
    parts = []
    for start in range(0, draws, _AT_ONCE):
        chosen = rng.integers(count, size=(min(_AT_ONCE, draws - start), count))
        parts.append(means({name: values[chosen] for name, values in columns.items()}))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _bounds(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    return float(low), float(high)
