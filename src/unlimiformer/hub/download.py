"""Download one pinned file from the user's package index. No code of the downloaded package is ever run.

`pip download` runs with the user's own settings (index, proxy, certificates). For a source archive pip asks the
package's build backend for metadata, which would run code of the package; a stub backend answers instead. The hash is
checked by pip before it opens the file, and here once more.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError, StorageError, UnlimiformerError
from ..utils.files import sha256
from .registry import Package

_STUB_BACKEND = '''"""Stub of a build backend: answers with the name and version that pip already has."""
import pathlib

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = pathlib.Path(metadata_directory, "{name}-{version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return folder.name
'''
# pip logs why an index page could not be fetched; a reason that starts with a status code came from a server
_NOT_FETCHED = re.compile(r"Could not fetch URL \S+: (?!\d{3} )(.+) - skipping")
# what pip ends with when the server of the file itself does not answer
_CONNECTION_LOST = re.compile(r"Max retries exceeded|Read timed out|connection-failed|connection-timeout")


DownloadProgress = Callable[[int, int], None]
"""Called with the bytes downloaded so far and the approximate total."""


class IndexUnreachableError(InputError):
    """The package index, or the server of its files, did not answer."""


def download(package: Package, folder: Path, progress: DownloadProgress | None = None) -> Path:
    """Download the package's file into `folder`, check its hash against the registry, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    command += ["--disable-pip-version-check", "--no-input", "--log", str(folder / "log.txt")]
    command += ["--dest", str(folder / "files"), "-r", str(requirement)]
    environment = dict(os.environ)
    if package.backend is None:
        command += ["--only-binary", ":all:"]
    else:
        command += ["--no-binary", ":all:", "--no-build-isolation", "--use-pep517"]
        environment["PYTHONPATH"] = str(_write_stub_backend(package.backend, package, folder / "backend"))
    total = package.megabytes * 10**6
    exit_code = _run_pip(command, environment, folder, lambda done: progress and progress(done, total))
    files = sorted((folder / "files").glob("*")) if exit_code == 0 else []
    if len(files) != 1:
        raise _explain_failure(package, _read(folder / "output.txt"), _read(folder / "log.txt"))
    if (digest := sha256(files[0])) != package.sha256:
        raise InputError(
            f"{files[0].name} has sha256 {digest}; expected {package.sha256}: the file was changed, and was not opened"
        )
    return files[0]


def _run_pip(command: list[str], environment: dict[str, str], folder: Path, progress: Callable[[int], object]) -> int:
    """Run pip with its temporary files in `folder` and its output in `output.txt`; return its exit code.

    `progress` is called regularly with the size of the temporary file that is being downloaded.
    """
    temporary = folder / "temporary"
    temporary.mkdir()
    with (folder / "output.txt").open("w") as out:
        environment = {**environment, "TMPDIR": str(temporary)}
        pip = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        try:
            while pip.poll() is None:
                progress(_largest_file(temporary))
                time.sleep(0.1)
        finally:
            pip.kill()
            pip.wait()
    return pip.returncode


def _largest_file(folder: Path) -> int:
    """Size in bytes of the largest file below a folder that another process is changing."""
    largest = 0
    for parent, _, names in os.walk(folder):  # which skips folders that vanish while it runs
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.path.getsize(os.path.join(parent, name)))
    return largest


def _write_stub_backend(backend: str, package: Package, folder: Path) -> Path:
    """Write a module named like the build backend, which pip imports in its place; return the folder for PYTHONPATH."""
    *parents, module = backend.split(".")
    package_folder = folder.joinpath(*parents)
    package_folder.mkdir(parents=True, exist_ok=True)
    for depth in range(len(parents)):
        folder.joinpath(*parents[: depth + 1], "__init__.py").touch()
    code = _STUB_BACKEND.format(name=package.name, version=package.version)
    code += "\n\n__legacy__ = __import__(__name__, fromlist=['_'])\n"  # what pip imports without a pyproject.toml
    (package_folder / f"{module}.py").write_text(code)
    return folder


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _explain_failure(package: Package, output: str, log: str) -> UnlimiformerError:
    """Turn pip's output and log into an error of one line."""
    requirement = f"{package.name}=={package.version}"
    if "DO NOT MATCH THE HASHES" in output or "THESE PACKAGES DO NOT MATCH" in output:
        return InputError(
            f"the index gave another file for {requirement} than expected (sha256 {package.sha256}); it was not opened"
        )
    if "No space left" in output:
        return StorageError(f"the disk is full: {requirement} could not be saved; free {package.megabytes} MB or more")
    errors = [line.strip().removeprefix("ERROR: ") for line in output.splitlines() if "error" in line.lower()]
    reason = errors[-1] if errors else "pip gave no reason"
    not_fetched = _NOT_FETCHED.search(log)
    if not_fetched or _CONNECTION_LOST.search(reason):
        reason = not_fetched.group(1) if not_fetched else reason
        return IndexUnreachableError(
            f"cannot download {requirement} ({package.megabytes} MB): the package index could not be reached "
            f"({reason[:200]}); connect to the network and try again"
        )
    return InputError(f"cannot download {requirement} with pip ({reason}); check the network and `pip config list`")
