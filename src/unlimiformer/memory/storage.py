"""A folder of named arrays with a signed description: written piece by piece, resumed, verified, memory-mapped.

`memory.json` names every array's type, shape and checksum and carries a checksum of its own. Array files are named
after their contents and exist before the description that names them, so an older memory stays valid until the moment
a newer one is complete. An unfinished write is in `partial/`, with a checkpoint (`journal.json`). Only numbers and JSON
are read: nothing in a folder is ever executed. This module knows nothing of models, tokens or windows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, MemoryMismatchError, StorageError
from ..utils.files import atomic_write, friendly_os_errors, sha256
from .description import (
    DESCRIPTION,
    DTYPE_NAMES,
    DTYPES,
    FORMAT_VERSION,
    array_file_name,
    byte_count,
    is_memory,
    read_description,
    sign,
)

_ARRAY_FILE = re.compile(r"[a-z_]+-[0-9a-f]{12}\.bin(\.part)?|memory\.json\.part")
_PARTIAL_FILE = re.compile(rf"\.lock|partial|{_ARRAY_FILE.pattern}")


def read(folder: Path, verify: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description of a finished memory, and its arrays, mapped read-only."""
    description = read_description(folder)
    arrays = {}
    for name, entry in description["arrays"].items():
        path = folder / array_file_name(name, entry["sha256"])
        dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
        expected_size = byte_count(dtype, shape)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise MemoryMismatchError(
                f"{folder} lacks {path.name}: the memory is damaged; index the text again"
            ) from None
        if size != expected_size:
            raise MemoryMismatchError(
                f"{path} has {size} bytes; expected {expected_size}: the memory is damaged; index the text again"
            )
        if verify and sha256(path) != entry["sha256"]:
            raise MemoryMismatchError(
                f"{path} does not match its checksum: the memory is damaged; index the text again"
            )
        arrays[name] = _map_array(path, dtype, shape)
    return description["about"], arrays


def array_path(folder: Path, name: str) -> Path | None:
    """The file that holds an array of a finished memory; None if it has no array of that name."""
    entry = read_description(folder)["arrays"].get(name)
    return None if entry is None else folder / array_file_name(name, entry["sha256"])


def write(folder: Path, about: dict[str, Any], arrays: dict[str, Tensor]) -> None:
    """Write a whole memory; one that is there stays valid until the new one is complete."""
    with PartialWrite.open(folder) as partial_write:
        if partial_write.load_checkpoint().get("done"):
            raise MemoryMismatchError(f"{folder} holds an unfinished memory; finish it, or remove {folder / 'partial'}")
        partial_write.reset()
        for name, array in arrays.items():
            partial_write.append(name, array)
        partial_write.publish(about)


class PartialWrite:
    """Arrays that are written row by row before they become a memory. Only one process at a time can hold it.

    `was_published`: an earlier process completed its memory and was stopped before it could clean up.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._partial = folder, folder / "partial"
        self._files: dict[str, BinaryIO] = {}
        self._row_types: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        self.was_published = False

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[PartialWrite]:
        """Lock the folder and open its partial write; what was checkpointed stays, whatever happens."""
        from filelock import FileLock, Timeout

        if folder.exists() and not (is_memory(folder) or _holds_only_partial(folder)):
            raise InputError(f"{folder} exists and is not a memory; give another path")
        with friendly_os_errors(folder, resumable=True):
            (folder / "partial").mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / ".lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise StorageError(
                    f"another process is writing {folder}; wait for it to end, or give another path"
                ) from None
            try:
                partial_write = cls(folder)
                partial_write.was_published = partial_write._is_published()
                if partial_write.was_published:
                    partial_write.discard()
                (folder / "partial").mkdir(exist_ok=True)
                try:
                    yield partial_write
                finally:
                    partial_write._end()
            finally:
                lock.release()
                if not is_memory(folder) and _holds_only_partial(folder) and not (folder / "partial").exists():
                    shutil.rmtree(folder, ignore_errors=True)

    def load_checkpoint(self) -> dict[str, Any]:
        """What `save_checkpoint` recorded last; empty if there is nothing."""
        try:
            checkpoint = json.loads((self._partial / "journal.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return checkpoint if isinstance(checkpoint, dict) else {}

    def save_checkpoint(self, done: int, **fields: Any) -> None:
        """Sync all arrays, then record how far the write came; with `done` 0 nothing is kept."""
        for file in self._files.values():
            _sync(file)
        row_types = {name: [DTYPE_NAMES[dtype], list(shape)] for name, (dtype, shape) in self._row_types.items()}
        atomic_write(self._partial / "journal.json", json.dumps({**fields, "done": done, "rows": row_types}))

    def reset(self) -> None:
        """Remove all that was written."""
        self.discard()
        self._partial.mkdir()

    def discard(self) -> None:
        """Remove the partial write altogether."""
        self._close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def resume_array(self, name: str, row_type: tuple[str, list[int]]) -> None:
        """Continue an array of an earlier run; `row_type` is the dtype and shape of a row, from the checkpoint."""
        self._row_types[name] = (DTYPES[row_type[0]], tuple(row_type[1]))

    def truncate(self, name: str, rows: int) -> None:
        """Keep only the first rows of an array."""
        dtype, shape = self._row_types[name]
        path, size = self._path(name), rows * byte_count(dtype, shape)
        if path.stat().st_size < size:
            raise MemoryMismatchError(
                f"{path} is shorter than its checkpoint says; remove {self._partial} and start again"
            )
        if path.stat().st_nlink > 1:  # a run that stopped while publishing has linked it into the folder already
            shutil.copyfile(path, path.with_suffix(".own"))
            os.replace(path.with_suffix(".own"), path)
        os.truncate(path, size)

    def append(self, name: str, rows: Tensor) -> None:
        """Append rows (n, ...) to an array; the first ones decide its dtype and shape."""
        dtype, shape = self._row_types.setdefault(name, (rows.dtype, tuple(rows.shape[1:])))
        assert dtype == rows.dtype and shape == tuple(rows.shape[1:]), "all rows of an array have one type"
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = self._path(name).open("ab")
        file.write(_raw_bytes(rows).data)

    def drop(self, name: str) -> None:
        """Remove an array."""
        file = self._files.pop(name, None)
        if file is not None:
            file.close()
        self._path(name).unlink(missing_ok=True)
        self._row_types.pop(name, None)

    def rename(self, name: str, target: str) -> None:
        """Replace the array `target` by the array `name`, atomically; if there is no `name`, drop `target`."""
        if name not in self._row_types:
            self.drop(target)
            return
        for file in (self._files.pop(name, None), self._files.pop(target, None)):
            if file is not None:
                _sync(file)
                file.close()
        os.replace(self._path(name), self._path(target))
        self._row_types[target] = self._row_types.pop(name)

    def array(self, name: str) -> Tensor | None:
        """Map an array as far as it is written; None if there is none."""
        if name not in self._row_types:
            return None
        if name in self._files:
            self._files[name].flush()
        dtype, shape = self._row_types[name]
        rows = self._path(name).stat().st_size // byte_count(dtype, shape)
        return _map_array(self._path(name), dtype, [rows, *shape])

    def publish(self, about: dict[str, Any]) -> None:
        """Make this the memory of the folder, in place of an older one."""
        for file in self._files.values():
            _sync(file)
        arrays: dict[str, Any] = {}
        for name in sorted(self._row_types):
            array = self.array(name)
            assert array is not None
            dtype = DTYPE_NAMES[array.dtype]
            arrays[name] = {"dtype": dtype, "shape": list(array.shape), "sha256": sha256(self._path(name))}
        self._close()
        for name, entry in arrays.items():
            _link(self._path(name), self.folder / array_file_name(name, entry["sha256"]))
        signed = sign({"format": FORMAT_VERSION, "about": about, "arrays": arrays})
        atomic_write(self._partial / "finished", new_sha256(signed.encode()).hexdigest())
        atomic_write(self.folder / DESCRIPTION, signed)
        current_files = {array_file_name(name, entry["sha256"]) for name, entry in arrays.items()}
        for path in self.folder.iterdir():
            if _ARRAY_FILE.fullmatch(path.name) and path.name not in current_files:
                path.unlink()
        shutil.rmtree(self._partial, ignore_errors=True)

    def _is_published(self) -> bool:
        try:
            return (self._partial / "finished").read_text() == sha256(self.folder / DESCRIPTION)
        except FileNotFoundError:
            return False

    def _path(self, name: str) -> Path:
        return self._partial / f"{name}.bin"

    def _end(self) -> None:
        """Close all files; without a checkpoint nothing is left behind."""
        try:
            self._close()
        finally:
            if not self.load_checkpoint().get("done"):
                shutil.rmtree(self._partial, ignore_errors=True)

    def _close(self) -> None:
        with ExitStack() as stack:  # every file is closed, even if closing one of them fails
            while self._files:
                stack.callback(self._files.popitem()[1].close)


def _map_array(path: Path, dtype: torch.dtype, shape: list[int]) -> Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    numpy_dtype = np.dtype(np.int16) if dtype is torch.bfloat16 else np.dtype(DTYPE_NAMES[dtype])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that the array is not writable
        return torch.from_numpy(np.memmap(path, numpy_dtype.newbyteorder("<"), "r", shape=tuple(shape))).view(dtype)


def _raw_bytes(rows: Tensor) -> np.ndarray:
    rows = rows.detach().cpu().contiguous()
    return rows.reshape(-1).view(torch.uint8).numpy() if rows.numel() else np.empty(0, np.uint8)


def _link(path: Path, target: Path) -> None:
    """Hard-link a file to a second name, or copy it where the file system has no hard links."""
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        os.link(path, part)
    except OSError:
        shutil.copyfile(path, part)
    os.replace(part, target)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _holds_only_partial(folder: Path) -> bool:
    """Whether a folder holds nothing but a partial write, or nothing at all."""
    return folder.is_dir() and all(_PARTIAL_FILE.fullmatch(path.name) for path in folder.iterdir())
