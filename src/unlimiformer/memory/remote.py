"""Memories in places that are no folder: whatever fsspec knows by its URL. They are read from a copy."""

from __future__ import annotations

import shutil
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import Any

from ..errors import UnlimiformerError
from ..utils.files import cache_folder
from .storage import DESCRIPTION, read


def is_url(place: str) -> bool:
    """Whether this is a URL, and no path."""
    return "://" in place


def join(place: str, name: str) -> str:
    """Something inside a place."""
    return f"{place.rstrip('/')}/{name}" if is_url(place) else str(Path(place) / name)


def check(place: str) -> None:
    """Raises if this is a URL that nobody here can open."""
    if is_url(place):
        _system(place)


def publish(folder: Path, url: str) -> None:
    """Copies a finished memory to a URL; its description goes last, so that half a copy is no memory."""
    system, root = _system(url)
    try:
        system.makedirs(root, exist_ok=True)
        names = [path.name for path in sorted(folder.glob("*.bin"))]
        for name in (*names, DESCRIPTION):
            system.put_file(str(folder / name), f"{root}/{name}")
        system.invalidate_cache(root)
        for path in system.ls(root, detail=False):
            if path.endswith(".bin") and path.rpartition("/")[2] not in names:
                system.rm_file(path)
    except OSError as error:
        raise UnlimiformerError(f"cannot write {url}: {error.strerror or error}") from None


def download(url: str) -> Path:
    """A folder with a copy of the memory at a URL, in the user's cache; what was copied before is not copied again."""
    system, root = _system(url)
    try:
        description = system.cat_file(f"{root}/{DESCRIPTION}")
    except OSError:
        raise UnlimiformerError(f"{url} is not a memory: it has no {DESCRIPTION}, or cannot be reached") from None
    folder = cache_folder() / "memories" / new_sha256(url.encode() + description).hexdigest()[:24]
    if not (folder / DESCRIPTION).is_file():
        from filelock import FileLock

        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not (folder / DESCRIPTION).is_file():
                _copy(system, root, url, folder, description)
    return folder


def _copy(system: Any, root: str, url: str, folder: Path, description: bytes) -> None:
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        for path in system.ls(root, detail=False):
            name = path.rpartition("/")[2]
            if name.endswith(".bin"):
                system.get_file(path, str(part / name))
    except OSError as error:
        raise UnlimiformerError(f"cannot copy {url}: {error.strerror or error}") from None
    (part / DESCRIPTION).write_bytes(description)
    try:
        read(part)
    except UnlimiformerError as error:
        raise UnlimiformerError(f"the copy of {url} is damaged ({error}); try again, or index the text again") from None
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def _system(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it."""
    try:
        import fsspec

        return fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UnlimiformerError(
            f"{url} cannot be opened ({error}); expected a folder, or a URL that fsspec knows"
        ) from None
