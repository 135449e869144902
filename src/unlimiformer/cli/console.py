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
from ..hub.loading import quiet_libraries as quiet_libraries
from ..utils.files import atomic_write

if TYPE_CHECKING:
    from ..memory.encode import Progress

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
        atomic_write(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise UnlimiformerError(f"cannot write {path}: {error.strerror}") from None


def input_pieces(file: str) -> Iterator[str]:
    """The text of a file or a memory, or of standard input for "-", in pieces; an empty one is refused at once."""
    from ..memory.memory import Memory
    from ..memory.remote import is_url
    from ..memory.storage import is_memory
    from ..text.sources import decode_utf8, iter_file, iter_text

    if file == "-":
        pieces = decode_utf8(iter(lambda: sys.stdin.buffer.read(1 << 16), b""), "standard input")
    elif is_url(file) or is_memory(file):
        pieces = iter_text(Memory.load(file).text)
    else:
        pieces = iter_file(Path(file))
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
