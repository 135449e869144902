"""Extract named members of a zip or tar archive. Member names are not trusted, and only plain files are extracted."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from ..errors import InputError

MAX_MEMBER_BYTES = 2 << 30


def extract_files(archive: Path, members: tuple[str, ...], folder: Path) -> list[Path]:
    """Extract the files that are, or lie below, one of the paths `members`; return the extracted paths.

    A file is written to `folder` under its path relative to that member.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        paths = [
            _copy_member(open_member, size, _safe_path(folder, relative, archive), archive)
            for name, size, open_member in iter_files(archive)
            if (relative := _relative_name(name, members)) is not None
        ]
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{archive.name} cannot be read ({error}); it may be cut off: download it again") from None
    if not paths:
        raise InputError(f"{archive.name} holds nothing under {', '.join(members)}; the package has changed")
    return paths


def iter_files(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Yield name and size of every plain file in a zip or tar, and what opens it; links and devices are skipped.

    Nothing of a file is read before it is opened: a zip may lack the bytes of files that nobody opens.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                file_type = (info.external_attr >> 16) & 0o170000
                if not info.is_dir() and file_type in (0, 0o100000):
                    yield info.filename, info.file_size, partial(zipped.open, info)
        return
    with tarfile.open(archive) as tarred:
        for member in tarred:
            if member.isreg():
                yield member.name, member.size, cast(Callable[[], IO[bytes]], partial(tarred.extractfile, member))


def _relative_name(name: str, members: tuple[str, ...]) -> str | None:
    """Return a file's path relative to the member that contains it; None if no member does."""
    for member in members:
        if name == member:
            return PurePosixPath(name).name
        if name.startswith(prefix := member.rstrip("/") + "/"):
            return name[len(prefix) :]
    return None


def _safe_path(folder: Path, name: str, archive: Path) -> Path:
    """Return the path of a member below `folder`; refuse a name that points outside it."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or "\\" in name or ":" in parts[0]:
        raise InputError(f"{archive.name} has a member that points outside its folder ({name!r}); it was not extracted")
    return folder.joinpath(*parts)


def _copy_member(open_member: Callable[[], IO[bytes]], size: int, target: Path, archive: Path) -> Path:
    if size > MAX_MEMBER_BYTES:
        raise InputError(f"{archive.name} has a member of {size:,} bytes; expected at most {MAX_MEMBER_BYTES:,}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_member() as stream, target.open("wb") as out:
        shutil.copyfileobj(stream, out)
    if (written := target.stat().st_size) != size:
        raise InputError(f"{archive.name} is cut off: a member has {written:,} of {size:,} bytes; download it again")
    return target
