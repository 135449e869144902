"""Load examples by the name of their source: a JSONL file, a dataset of a model hub, or a synthetic task."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import InputError
from .definition import sample_evenly, tasks
from .example import SHAPES, Example, read_examples

CONDENSED, PASSAGES, SHARED = "condensed", "passages", "shared-passages"
"""Prefixes of a JSONL file: documents are shortened to what all answers are about, to passages of each question, or to
passages of several questions."""
_PREFIXES = (CONDENSED, PASSAGES, SHARED)


def examples(source: str, split: str = "train", limit: int | None = None) -> list[Example]:
    """Load the examples of one or more sources.

    Parameters
    ----------
    source : sources with commas between them. A source is a JSONL file, `TASK:FILE` for a file with the columns of a
        task's dataset, `condensed:FILE`, `passages:FILE`, `shared-passages:FILE`, the name of a hub's dataset, or a
        synthetic task with a count and optionally a seed: `facts:2000`, `facts:2000:1`.
    split : for hub datasets and synthetic tasks.
    limit : largest number of examples, taken evenly from all of them.
    """
    sources = [source] if Path(source).is_file() else source.split(",")
    return sample_evenly([example for name in sources for example in _load_source(name, split)], limit)


def _load_source(source: str, split: str) -> list[Example]:
    name, _, argument = source.partition(":")
    hub_names = [task.name for task in tasks().values() if task.hub is not None]
    synthetic_names = [task.name for task in tasks().values() if task.written is not None]
    if Path(source).is_file():
        loaded = list(read_examples(Path(source)))
    elif source in hub_names:
        loaded = tasks()[source].load(split=split)
    elif name in synthetic_names and re.fullmatch(r"\d+(:\d+)?", argument):
        count, _, seed = argument.partition(":")
        loaded = tasks()[name].load(split=split, count=int(count), seed=int(seed or 0)) if int(count) else []
    elif name in tasks() and Path(argument).is_file():
        loaded = tasks()[name].load(argument, split)
    elif name == CONDENSED and Path(argument).is_file():
        from .condense import condense

        loaded = condense(list(read_examples(Path(argument))))
    elif name == PASSAGES and Path(argument).is_file():
        from .passages import shorten_to_passages

        loaded = shorten_to_passages(list(read_examples(Path(argument))))
    elif name == SHARED and Path(argument).is_file():
        from .shared_passages import share_passages

        loaded = share_passages(list(read_examples(Path(argument))))
    else:
        names = ", ".join((*hub_names, *(f"{name}:2000" for name in synthetic_names)))
        missing = argument if name in _PREFIXES else source
        raise InputError(
            f"no file {missing!r}, and no dataset of that name; expected a JSONL file, TASK:FILE, "
            f"{', '.join(f'{prefix}:FILE' for prefix in _PREFIXES)}, or one of: {names}"
        )
    if not loaded:
        expected = "at least one, as facts:2000" if name in synthetic_names else f"lines, each {SHAPES}"
        raise InputError(f"{source} has no examples; expected {expected}")
    return loaded
