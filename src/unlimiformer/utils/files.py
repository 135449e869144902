"""Files on disk: the cache folder, checksums, atomic writes, and readable messages for file system errors."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from ..errors import StorageError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_NAME_TAKEN = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
_LASTING = (*_NAME_TAKEN, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP)


def cache_folder() -> Path:
    """Return the user's cache folder for this library (`UNLIMIFORMER_CACHE` moves it), without creating it."""
    if configured := os.environ.get("UNLIMIFORMER_CACHE"):
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "unlimiformer"


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file's content, as hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def folder_size(folder: Path) -> int:
    """Add up the sizes of all files below a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def atomic_write(path: Path, text: str) -> None:
    """Write a text file so that after a crash or a power cut it has either its old or its new content."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def copy_to_disk(source: Path, target: Path) -> None:
    """Copy the content of a file, so that it is not lost in a power cut."""
    with source.open("rb") as old, target.open("wb") as new:
        shutil.copyfileobj(old, new)
        new.flush()
        os.fsync(new.fileno())


def sync_folder(folder: Path) -> None:
    """Make sure that files which were renamed in a folder keep their new names after a power cut."""
    if os.name == "nt":  # Windows opens no folders, and writes their changes through
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def os_error_behind(error: BaseException) -> OSError | None:
    """The error of the file system that led to an error; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def is_disk_full(error: BaseException) -> bool:
    """Whether a full disk led to an error."""
    refusal = os_error_behind(error)
    return refusal is not None and refusal.errno in _DISK_FULL


def may_pass(error: BaseException) -> bool:
    """Whether a failure of the file system may end by itself: all but something missing or of the wrong kind."""
    refusal = os_error_behind(error)
    return isinstance(error, (OSError, StorageError)) and (refusal is None or refusal.errno not in _LASTING)


@contextmanager
def friendly_os_errors(
    path: Path, resumable: bool = False, action: Literal["read", "write"] = "write"
) -> Iterator[None]:
    """Turn an `OSError` while writing or reading `path` into a `StorageError` that says what to do.

    Parameters
    ----------
    path : the file or folder that is written or read; the message names it.
    resumable : the work continues where it stopped when it is started again; the message says so.
    """
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        retry = "run the same command again; it continues where it stopped" if resumable else "try again"
        if error.errno in _DISK_FULL:
            advice = f"the disk is full: free some space, then {retry}"
        elif error.errno in _NO_PERMISSION:
            advice = f"no permission to {action} there: choose another folder"
        elif error.errno in _NAME_TAKEN:
            advice = "a file or folder of that name is in the way: choose another path"
        elif error.errno in _TOO_MANY_FILES:
            advice = f"too many files are open (see `ulimit -n`): close some, then {retry}"
        else:
            advice = retry
        raise StorageError(f"cannot {action} {path} ({error.strerror}): {advice}") from error
