"""Memories at URLs that fsspec knows. They are uploaded when they are finished, and read from a verified local copy."""

from __future__ import annotations

import shutil
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import Any

from ..errors import InputError, MemoryMismatchError, StorageError
from ..utils.files import cache_folder
from .description import DESCRIPTION
from .storage import read


def is_url(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def join(folder: str, name: str) -> str:
    """The path of `name` inside a folder or URL."""
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else str(Path(folder) / name)


def check(path: str) -> None:
    """Raise if this is a URL that cannot be opened here."""
    if is_url(path):
        _open_file_system(path)


def upload(folder: Path, url: str) -> None:
    """Copy a finished memory to a URL; its description goes last, so an incomplete copy is not a memory."""
    file_system, root = _open_file_system(url)
    try:
        file_system.makedirs(root, exist_ok=True)
        names = [path.name for path in sorted(folder.glob("*.bin"))]
        for name in (*names, DESCRIPTION):
            file_system.put_file(str(folder / name), f"{root}/{name}")
        file_system.invalidate_cache(root)
        for path in file_system.ls(root, detail=False):
            if path.endswith(".bin") and path.rpartition("/")[2] not in names:
                file_system.rm_file(path)
    except OSError as error:
        raise StorageError(f"cannot write {url}: {error.strerror or error}") from None


def download(url: str) -> Path:
    """A folder in the user's cache with a copy of the memory at a URL; it is copied only once."""
    file_system, root = _open_file_system(url)
    try:
        description = file_system.cat_file(f"{root}/{DESCRIPTION}")
    except OSError:
        raise MemoryMismatchError(f"{url} is not a memory: it has no {DESCRIPTION}, or cannot be reached") from None
    folder = cache_folder() / "memories" / new_sha256(url.encode() + description).hexdigest()[:24]
    if not (folder / DESCRIPTION).is_file():
        from filelock import FileLock

        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not (folder / DESCRIPTION).is_file():
                _copy(file_system, root, url, folder, description)
    return folder


def _copy(file_system: Any, root: str, url: str, folder: Path, description: bytes) -> None:
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        for path in file_system.ls(root, detail=False):
            name = path.rpartition("/")[2]
            if name.endswith(".bin"):
                file_system.get_file(path, str(part / name))
    except OSError as error:
        raise StorageError(f"cannot copy {url}: {error.strerror or error}") from None
    (part / DESCRIPTION).write_bytes(description)
    try:
        read(part)
    except MemoryMismatchError as error:
        raise MemoryMismatchError(
            f"the copy of {url} is damaged ({error}); try again, or index the text again"
        ) from None
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def _open_file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path inside it."""
    try:
        import fsspec

        return fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(f"{url} cannot be opened ({error}); expected a folder, or a URL that fsspec knows") from None
