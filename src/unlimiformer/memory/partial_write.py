"""An unfinished memory: arrays that are written row by row, with checkpoints from which a later process continues.

It is in the folder `partial/` of the memory that it becomes. What a checkpoint vouches for is compared with its
checksums before it is continued; what is damaged is not kept. This module knows nothing of models, tokens or windows.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import InputError, StorageError
from ..utils.files import atomic_write, copy_to_disk, friendly_os_errors, sha256
from .array_file import ArrayFile
from .checkpoints import Checkpoint, CheckpointFile
from .description import DESCRIPTION, FORMAT_VERSION, array_file_name, is_memory, sign

_LOG = logging.getLogger(__name__)
_ARRAY_FILE = re.compile(r"[a-z_]+-[0-9a-f]{12}\.bin(\.part)?|memory\.json\.part")
_PARTIAL_FILE = re.compile(rf"\.lock|partial|{_ARRAY_FILE.pattern}")
_EARLIER_CHECKPOINT = "journal.json"  # of versions that recorded no checksums


class PartialWrite:
    """Arrays that are written row by row before they become a memory. Only one process at a time can hold it.

    `was_published`: an earlier process completed its memory and was stopped before it could clean up.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._partial = folder, folder / "partial"
        self._arrays: dict[str, ArrayFile] = {}
        self._checkpoints = CheckpointFile(self._partial / "checkpoints.jsonl")
        self._is_kept = False
        self.was_published = False

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[PartialWrite]:
        """Lock the folder and open its partial write; what was checkpointed stays, whatever happens."""
        from filelock import FileLock, Timeout

        with friendly_os_errors(folder, resumable=True):
            if folder.exists() and not (is_memory(folder) or _holds_only_partial(folder)):
                raise InputError(f"{folder} exists and is not a memory; give another path")
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
                partial_write._begin()
                try:
                    yield partial_write
                finally:
                    partial_write._end()
            finally:
                lock.release()
                if not is_memory(folder) and _holds_only_partial(folder) and not (folder / "partial").exists():
                    shutil.rmtree(folder, ignore_errors=True)

    def checkpoints(self) -> list[Checkpoint]:
        """What earlier processes recorded, oldest first."""
        checkpoints, damaged = self._checkpoints.read()
        if damaged:
            _LOG.warning("%s: %d lines of its checkpoints are damaged and not used", self.folder, damaged)
        return checkpoints

    def checkpoint(self, done: int, names: Sequence[str], **about: Any) -> None:
        """Record how far the write came, and that these arrays are safe as far as they are written."""
        arrays = {name: self._arrays[name] for name in names if name in self._arrays}
        for array in arrays.values():
            array.sync()
        entries = {name: array.description() for name, array in arrays.items()}
        self._checkpoints.append(Checkpoint(done, about, entries))
        self._is_kept = True

    def resume(self, names: Sequence[str], checkpoints: list[Checkpoint]) -> Checkpoint | None:
        """Continue these arrays from the last of the checkpoints that agrees with what is on disk.

        What was written after it is removed; if there is none, all of the arrays is.
        """
        arrays: dict[str, ArrayFile] = {}
        kept: list[Checkpoint] = []
        for checkpoint in checkpoints:
            verified = self._verify(checkpoint, arrays)
            if verified is None:
                break
            arrays = verified
            kept.append(checkpoint)
        self._checkpoints.replace(kept)  # before anything changes: they are true before and after
        self._is_kept = bool(kept)
        for name in names:
            if name in arrays:
                _truncate(arrays[name].path, arrays[name].nbytes)
            else:
                self.drop(name)
        self._arrays.update(arrays)
        return kept[-1] if kept else None

    def reset(self) -> None:
        """Remove all that was written."""
        self._close()
        self._is_kept = False
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(exist_ok=True)

    def append(self, name: str, rows: Tensor) -> None:
        """Append rows (n, ...) to an array; the first ones decide its dtype and shape."""
        if name not in self._arrays:
            self._arrays[name] = ArrayFile(self._path(name), (rows.dtype, tuple(rows.shape[1:])))
        self._arrays[name].append(rows)

    def drop(self, name: str) -> None:
        """Remove an array."""
        if array := self._arrays.pop(name, None):
            array.close()
        self._path(name).unlink(missing_ok=True)

    def array(self, name: str) -> Tensor | None:
        """Map an array as far as it is written; None if there is none."""
        return self._arrays[name].map() if name in self._arrays else None

    def publish(self, about: dict[str, Any]) -> None:
        """Make this the memory of the folder, in place of an older one."""
        for array in self._arrays.values():
            array.sync()
        self._close()
        entries = {name: array.description() for name, array in sorted(self._arrays.items())}
        current_files = {array_file_name(name, entry["sha256"]) for name, entry in entries.items()}
        for name, entry in entries.items():
            _link(self._path(name), self.folder / array_file_name(name, entry["sha256"]))
        signed = sign({"format": FORMAT_VERSION, "about": about, "arrays": entries})
        atomic_write(self._partial / "finished", new_sha256(signed.encode()).hexdigest())
        atomic_write(self.folder / DESCRIPTION, signed)
        for path in self.folder.iterdir():
            if _ARRAY_FILE.fullmatch(path.name) and path.name not in current_files:
                path.unlink()
        shutil.rmtree(self._partial, ignore_errors=True)

    def _begin(self) -> None:
        self.was_published = self._is_published()
        has_checksums = not (self._partial / _EARLIER_CHECKPOINT).exists()
        if not (self.was_published or has_checksums):
            _LOG.warning(
                "%s: its unfinished memory is of an earlier version, without checksums; it is started anew", self.folder
            )
        if self.was_published or not has_checksums:
            self.reset()
        self._is_kept = self._checkpoints.path.exists()

    def _is_published(self) -> bool:
        try:
            return (self._partial / "finished").read_text() == sha256(self.folder / DESCRIPTION)
        except FileNotFoundError:
            return False

    def _verify(self, checkpoint: Checkpoint, earlier: dict[str, ArrayFile]) -> dict[str, ArrayFile] | None:
        """The arrays as the checkpoint describes them; None if those on disk differ. `earlier` are verified already."""
        verified = {}
        for name, entry in checkpoint.arrays.items():
            array = earlier.get(name) or ArrayFile(self._path(name), checkpoint.row_type(name))
            try:
                verified[name] = array.extended(entry["shape"][0])
            except FileNotFoundError:
                return None
            if verified[name].description() != entry:
                return None
        return verified

    def _path(self, name: str) -> Path:
        return self._partial / f"{name}.bin"

    def _end(self) -> None:
        """Close all files; without a checkpoint nothing is left behind."""
        try:
            self._close()
        finally:
            if not self._is_kept:
                shutil.rmtree(self._partial, ignore_errors=True)

    def _close(self) -> None:
        with ExitStack() as stack:  # every file is closed, even if closing one of them fails
            stack.callback(self._checkpoints.close)
            for array in self._arrays.values():
                stack.callback(array.close)


def _truncate(path: Path, size: int) -> None:
    if path.stat().st_nlink > 1:  # a run that stopped while publishing has linked it into the folder already
        copy_to_disk(path, path.with_suffix(".own"))
        os.replace(path.with_suffix(".own"), path)
    os.truncate(path, size)


def _link(path: Path, target: Path) -> None:
    """Hard-link a file to a second name, or copy it where the file system has no hard links."""
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        os.link(path, part)
    except OSError:
        copy_to_disk(path, part)
    os.replace(part, target)


def _holds_only_partial(folder: Path) -> bool:
    """Whether a folder holds nothing but a partial write, or nothing at all."""
    return folder.is_dir() and all(_PARTIAL_FILE.fullmatch(path.name) for path in folder.iterdir())
