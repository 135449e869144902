"""Flips bits of memories. Each function runs in a process of its own and prints the flips that were not found."""

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos_commands import Inputs, memory_outcome

_WORDS, _DONE = 700, 20  # of the text; windows of the unfinished memory


class _Interrupted(BaseException):
    pass


def flip_finished(inputs: Inputs, work: Path, generator: random.Random, flips: int) -> None:
    """A finished memory with a flipped bit must be refused."""
    from unlimiformer import Memory
    from unlimiformer.errors import UnlimiformerError

    folder = work / "memory"
    _index(inputs)(folder)

    def is_found() -> bool:
        try:
            Memory.load(folder)
        except UnlimiformerError:
            return True
        return False

    _flip_and_check(folder, generator, flips, is_found)


def flip_unfinished(inputs: Inputs, work: Path, generator: random.Random, flips: int) -> None:
    """An unfinished memory with a flipped bit must become the same memory as without, when it is continued."""
    index = _index(inputs)
    index(work / "whole")
    expected = memory_outcome(work / "whole")

    def interrupt(done: int, total: int) -> None:
        if done > _DONE:
            raise _Interrupted

    with suppress(_Interrupted):
        index(work / "unfinished", progress=interrupt)

    def is_found() -> bool:
        copy = work / "copy"
        shutil.copytree(work / "unfinished", copy)
        index(copy)
        same = memory_outcome(copy) == expected
        shutil.rmtree(copy)
        return same

    _flip_and_check(work / "unfinished" / "partial", generator, flips, is_found)


def _flip_and_check(folder: Path, generator: random.Random, flips: int, is_found: Callable[[], bool]) -> None:
    missed = []
    for _ in range(flips):
        path = generator.choice(sorted(path for path in folder.iterdir() if path.is_file() and path.stat().st_size))
        whole = path.read_bytes()
        position, bit = generator.randrange(len(whole)), generator.randrange(8)
        path.write_bytes(whole[:position] + bytes([whole[position] ^ (1 << bit)]) + whole[position + 1 :])
        if not is_found():
            missed.append(f"{path.name}, byte {position}, bit {bit}")
        path.write_bytes(whole)
    print(json.dumps({"missed": missed}))


def _index(inputs: Inputs) -> Callable[..., Any]:
    """Make memories of a short text."""
    from unlimiformer import Unlimiformer

    text = " ".join((inputs.folder / "book").read_text().split()[:_WORDS])
    wrapped = Unlimiformer.from_pretrained(inputs.t5, window=32, top_k=9, dtype="int8")
    return lambda folder, **options: wrapped.index(text, folder=folder, **options)
