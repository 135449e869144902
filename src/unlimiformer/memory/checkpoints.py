"""What an unfinished memory records of itself: one line of JSON for every batch of windows that is safe on disk.

A line carries a checksum of its own and a running checksum of every array, so each vouches for all that is before it:
a line that is damaged makes no other one useless.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..utils.files import atomic_write
from .description import DTYPES, is_valid_entry


@dataclass(frozen=True)
class Checkpoint:
    """What was safe at one moment.

    Parameters
    ----------
    done : how far the write had come.
    about : what the writer has to know to continue.
    arrays : dtype, shape and checksum of every array, as in memory.json.
    """

    done: int
    about: dict[str, Any]
    arrays: dict[str, dict[str, Any]]

    def row_type(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Dtype and shape of a row of an array."""
        return DTYPES[self.arrays[name]["dtype"]], tuple(self.arrays[name]["shape"][1:])

    def to_line(self) -> str:
        """The line of the file, with its checksum."""
        body = json.dumps({"done": self.done, "about": self.about, "arrays": self.arrays}, sort_keys=True)
        return f"{sha256(body.encode()).hexdigest()} {body}\n"


class CheckpointFile:
    """The checkpoints of one unfinished memory, oldest first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def read(self) -> tuple[list[Checkpoint], int]:
        """All checkpoints whose line is intact, and the number of damaged lines.

        A last line without its end was being written when the process was killed, and does not count.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return [], 0
        checkpoints = [checkpoint for line in lines if (checkpoint := _parse(line + b"\n")) is not None]
        return checkpoints, len(lines) - len(checkpoints)

    def append(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint, and wait until it is on disk."""
        if self._file is None:
            self._file = self.path.open("ab")
        self._file.write(checkpoint.to_line().encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def replace(self, checkpoints: list[Checkpoint]) -> None:
        """Keep these checkpoints only."""
        self.close()
        if checkpoints:
            atomic_write(self.path, "".join(checkpoint.to_line() for checkpoint in checkpoints))
        else:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _parse(line: bytes) -> Checkpoint | None:
    """Read a line; None if it is damaged."""
    try:
        values = json.loads(line.partition(b" ")[2])
        checkpoint = Checkpoint(values["done"], values["about"], values["arrays"])
        is_valid = all(is_valid_entry(entry) and entry["shape"] for entry in checkpoint.arrays.values())
        return checkpoint if is_valid and checkpoint.to_line().encode() == line else None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
