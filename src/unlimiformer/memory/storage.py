"""A folder of named arrays with a signed description: written whole, verified, memory-mapped.

`memory.json` names every array's type, shape and checksum and carries a checksum of its own. Array files are named
after their contents and exist before the description that names them, so an older memory stays valid until the moment
a newer one is complete. Only numbers and JSON are read: nothing in a folder is ever executed. This module knows nothing
of models, tokens or windows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import MemoryMismatchError
from ..utils.files import friendly_os_errors, sha256
from .array_file import map_array
from .description import DTYPES, array_file_name, byte_count, read_description
from .partial_write import PartialWrite


def read(folder: Path, verify: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description of a finished memory, and its arrays, mapped read-only."""
    description = read_description(folder)
    arrays = {}
    for name, entry in description["arrays"].items():
        path = folder / array_file_name(name, entry["sha256"])
        with friendly_os_errors(path, action="read"):
            arrays[name] = _read_array(path, entry, verify)
    return description["about"], arrays


def array_path(folder: Path, name: str) -> Path | None:
    """The file that holds an array of a finished memory; None if it has no array of that name."""
    entry = read_description(folder)["arrays"].get(name)
    return None if entry is None else folder / array_file_name(name, entry["sha256"])


def write(folder: Path, about: dict[str, Any], arrays: dict[str, Tensor]) -> None:
    """Write a whole memory; one that is there stays valid until the new one is complete."""
    with PartialWrite.open(folder) as partial_write:
        if partial_write.checkpoints():
            raise MemoryMismatchError(f"{folder} holds an unfinished memory; finish it, or remove {folder / 'partial'}")
        partial_write.reset()
        for name, array in arrays.items():
            partial_write.append(name, array)
        partial_write.publish(about)


def _read_array(path: Path, entry: dict[str, Any], verify: bool) -> Tensor:
    """Map one array, if it is as memory.json describes it."""
    dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
    expected_size = byte_count(dtype, shape)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise MemoryMismatchError(
            f"{path.parent} lacks {path.name}: the memory is damaged; index the text again"
        ) from None
    if size != expected_size:
        raise MemoryMismatchError(
            f"{path} has {size} bytes; expected {expected_size}: the memory is damaged; index the text again"
        )
    if verify and sha256(path) != entry["sha256"]:
        raise MemoryMismatchError(f"{path} does not match its checksum: the memory is damaged; index the text again")
    return map_array(path, dtype, shape)
