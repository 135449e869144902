"""Examples by the names of their sources: JSONL files, data sets of a hub, facts that a program writes."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import UnlimiformerError
from .definition import spread, tasks
from .jsonl import SHAPES, Example, read_lines

CONDENSED = "condensed"
"""Before a JSONL file: of its documents, what the answers are about."""


def examples(source: str, split: str = "train", limit: int | None = None) -> list[Example]:
    """All examples of some sources, with commas between them; at most `limit`, evenly spread.

    A source is a JSONL file, condensed:FILE for what its answers are about, the name of a hub's data set, or facts that
    a program writes, as facts:2000; others with another seed: facts:2000:1.
    """
    sources = [source] if Path(source).is_file() else source.split(",")
    return spread([example for each in sources for example in _of_source(each, split)], limit)


def _of_source(source: str, split: str) -> list[Example]:
    name, _, rest = source.partition(":")
    on_hub = [task.name for task in tasks().values() if task.hub is not None]
    written = [task.name for task in tasks().values() if task.written is not None]
    if Path(source).is_file():
        found = list(read_lines(Path(source)))
    elif source in on_hub:
        found = tasks()[source].load(split=split)
    elif name in written and re.fullmatch(r"\d+(:\d+)?", rest):
        count, _, seed = rest.partition(":")
        found = tasks()[name].load(split=split, count=int(count), seed=int(seed or 0)) if int(count) else []
    elif name == CONDENSED and Path(rest).is_file():
        from .condense import condensed

        found = condensed(list(read_lines(Path(rest))))
    else:
        names = ", ".join((*on_hub, *(f"{name}:2000" for name in written)))
        missing = rest if name == CONDENSED else source
        raise UnlimiformerError(
            f"no file {missing!r}, and no data set of that name; expected a JSONL file, {CONDENSED}:FILE, or one of: "
            f"{names}"
        )
    if not found:
        wanted = "at least one, as facts:2000" if name in written else f"lines, each {SHAPES}"
        raise UnlimiformerError(f"{source} has no examples; expected {wanted}")
    return found
