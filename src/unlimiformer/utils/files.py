"""Files on disk: the cache folder, checksums, atomic writes, and readable messages for errors of the file system."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_IN_THE_WAY = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)


def cache_folder() -> Path:
    """The user's cache folder for this library (`UNLIMIFORMER_CACHE` moves it); it is not created here."""
    if configured := os.environ.get("UNLIMIFORMER_CACHE"):
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "unlimiformer"


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, as hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def folder_size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def atomic_write(path: Path, text: str) -> None:
    """Write a text file so that after a crash it has either its old or its new content."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


@contextmanager
def friendly_os_errors(path: Path, resumable: bool = False) -> Iterator[None]:
    """Turn an `OSError` while writing `path` into a `StorageError` that says what to do.

    `resumable`: the work continues where it stopped when it is started again, and the message says so.
    """
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        again = "run the same command again; it continues where it stopped" if resumable else "try again"
        if error.errno in _FULL:
            advice = f"the disk is full: free some space, then {again}"
        elif error.errno in _FORBIDDEN:
            advice = "no permission to write there: choose another folder"
        elif error.errno in _IN_THE_WAY:
            advice = "a file or folder of that name is in the way: choose another path"
        else:
            advice = again
        raise StorageError(f"cannot write {path} ({error.strerror}): {advice}") from error
