"""The wheel: it holds compiled kernels, so that its users need no C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_IMPORT = """
import torch, unlimiformer
from unlimiformer.datastore.kernels import dispatch
print(unlimiformer.__file__)
print(*dispatch.available())
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what a wheel is built from."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    return folder


def _build(source, folder, path=None):
    """Build a wheel with this PATH, and unpack it; return its name and the folder."""
    environment = {**os.environ, **({} if path is None else {"PATH": path})}
    command = [sys.executable, "-m", "pip", "wheel", source, "--no-deps", "--no-build-isolation", "-q", "-w", folder]
    subprocess.run(command, check=True, env=environment, timeout=300)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "unpacked")
    return wheel.name, folder / "unpacked"


def _available(package, cache, path):
    """The package that is imported from a folder, and the instruction sets whose kernels it has."""
    environment = {**os.environ, "PYTHONPATH": str(package), "PATH": str(path), "UNLIMIFORMER_CACHE": str(cache)}
    environment.pop("UNLIMIFORMER_NATIVE", None)
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT], check=True, env=environment, cwd=cache, capture_output=True, text=True
    )
    file, names = done.stdout.splitlines()[-2:]
    assert Path(file).is_relative_to(package)
    return names.split()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_wheel_has_kernels_that_need_no_compiler(source, tmp_path):
    name, package = _build(source, tmp_path)
    assert "-py3-none-" in name and not name.endswith("-any.whl")
    (tmp_path / "empty").mkdir()
    names = _available(package, tmp_path, tmp_path / "empty")
    assert "scalar" in names
    assert not (tmp_path / "native").exists(), "nothing was compiled"
    (library,) = package.rglob("kernels-*.so")
    library.unlink()
    assert _available(package, tmp_path, tmp_path / "empty") == [], "the kernels were those of the wheel"
    assert _available(package, tmp_path, os.environ["PATH"]) == names, "and are compiled where they are missing"


def test_without_a_compiler_the_wheel_is_for_every_platform(source, tmp_path):
    (tmp_path / "empty").mkdir()
    name, package = _build(source, tmp_path, str(tmp_path / "empty"))
    assert name.endswith("-py3-none-any.whl") and not list(package.rglob("kernels-*.so"))
