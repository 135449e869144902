"""What all commands share: where messages go, how progress looks, how options become settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..errors import UnlimiformerError
from ..loading import quiet_libraries as quiet_libraries
from ..paths import write_whole

if TYPE_CHECKING:
    from ..encoding import Progress

messages = Console(stderr=True, highlight=False)


@contextmanager
def progress_bar(title: str, unit: str = "windows") -> Iterator[Progress]:
    """A bar on standard error that a function (done, of how many) moves."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *((DownloadColumn(),) if unit == "bytes" else (MofNCompleteColumn(), TextColumn(unit))),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, of: bars.update(task, completed=done, total=of)


def integers(name: str, text: str | None) -> tuple[int, ...] | None:
    """Numbers from "0,2,5"; None stays None."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UnlimiformerError(f"{name} is {text!r}; expected numbers with commas, such as 0,2,5") from None


def write_json(path: Path, content: Any) -> None:
    """Writes a file whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise UnlimiformerError(f"cannot write {path}: {error.strerror}") from None


def input_pieces(file: str) -> Iterator[str]:
    """The text of a file or a memory, or of standard input for "-", in pieces; an empty one is refused at once."""
    from ..disk import is_memory
    from ..memory import Memory
    from ..remote import is_url
    from ..sources import decoded, file_pieces, text_pieces

    if file == "-":
        pieces = decoded(iter(lambda: sys.stdin.buffer.read(1 << 16), b""), "standard input")
    elif is_url(file) or is_memory(file):
        pieces = text_pieces(Memory.load(file).text)
    else:
        pieces = file_pieces(Path(file))
    opening = []
    for piece in pieces:
        opening.append(piece)
        if piece.strip():
            return chain(opening, pieces)
    raise UnlimiformerError(f"{'standard input' if file == '-' else file} is empty; expected a text")


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
