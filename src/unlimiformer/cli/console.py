"""What all commands share: messages and progress on standard error, JSON files, sizes for people."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..utils.files import atomic_write, friendly_os_errors
from ..utils.quiet import quiet_libraries as quiet_libraries

if TYPE_CHECKING:
    from ..memory.encode import Progress

_WIDTH_OF_FILES = 160  # of tables that are written to a file or a pipe
messages = Console(stderr=True, highlight=False)
if not messages.is_terminal and "COLUMNS" not in os.environ:
    messages.width = _WIDTH_OF_FILES


@contextmanager
def progress_bar(title: str, unit: str = "windows") -> Iterator[Progress]:
    """A bar on standard error, moved by a function of the number done and the total."""
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
        yield lambda done, total: bars.update(task, completed=done, total=total)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file; its folder is created."""
    with friendly_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(content, indent=1) + "\n")


def size(count: float) -> str:
    """A number of bytes for people, such as 12.3 MB."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
