"""Rankings of a model's heads, cached in the user's cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from ..utils.files import cache_folder
from ..utils.jsonl import JSON_ERRORS

Head = tuple[int, int]
"""A layer and a head in it, counted from 0."""


def cached_ranking(name: str, heads: Sequence[Head], rank: Callable[[], list[Head]]) -> list[Head]:
    """All heads, best first: read from the cache, or ranked now.

    Parameters
    ----------
    name : of the file in the cache; another one for every model.
    heads : all heads; a stored ranking of others is not used.
    """
    path = cache_folder() / "heads" / f"{name}.json"
    try:
        stored = [(int(layer), int(head)) for layer, head in json.loads(path.read_text())]
    except (OSError, TypeError, *JSON_ERRORS):
        stored = []
    if sorted(stored) == sorted(heads):
        return stored
    ranking = rank()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(ranking))
    except OSError:  # without a writable cache they are ranked again next time
        pass
    return ranking
