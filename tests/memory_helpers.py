"""Helpers of the memory tests: compare folders, and interrupt a run at a chosen moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import make_book

from unlimiformer.memory.checkpoints import CheckpointFile

GREEDY = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1}


class Interrupted(BaseException):
    """Raised by a test in the middle of a run, as a kill would end it."""


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files below a folder."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def reversed_book() -> str:
    """Create a text of the same words as `make_book(3000)`, in reverse order."""
    return " ".join(reversed(make_book(3000).split()))


def stop_after(windows: int) -> Callable[[int, int], None]:
    """Create a progress callback that interrupts the run once more than `windows` windows are done."""

    def progress(done: int, total: int) -> None:
        if done > windows:
            raise Interrupted

    return progress


def windows_recorded(memory: Path) -> int:
    """The number of windows that the newest checkpoint of an unfinished memory vouches for; 0 without one."""
    checkpoints, _ = CheckpointFile(memory / "partial" / "checkpoints.jsonl").read()
    return checkpoints[-1].done if checkpoints else 0


def interrupt_call(
    function: Callable, number: int, counter: list[int] | None = None, error: BaseException | None = None
) -> Callable:
    """Wrap a function so that its call number `number` raises; functions with one `counter` are counted together."""
    calls = [0] if counter is None else counter

    def wrapper(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            raise error or Interrupted
        return function(*args)

    return wrapper
