"""Compile the C kernels once for this machine and load them; the result is cached in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from ...utils.files import cache_folder

_SOURCES = ("topk.h", "scan.c", "ivf.c")
_FLAGS = ("-O3", "-march=native", "-funroll-loops", "-ffast-math", "-fno-finite-math-only", "-fPIC")
_TIMEOUT = 120

# Ways to use OpenMP, best first: (flags for compiling, flags for linking). Without a flag for linking, the kernels run
# on torch's own pool of threads. A second pool would compete with it, as its threads keep spinning after every torch
# operation.
_OPENMP_MODES = ((("-fopenmp",), ()), (("-fopenmp",), ("-fopenmp",)), ((), ()))


@cache
def library() -> ctypes.CDLL | None:
    """Load the compiled kernels; None without a C compiler or with `UNLIMIFORMER_NATIVE=0` in the environment."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or os.environ.get("UNLIMIFORMER_NATIVE") == "0":
        return None
    for compile_flags, link_flags in _OPENMP_MODES if _share_torch_threads() else _OPENMP_MODES[1:]:
        try:
            return ctypes.CDLL(str(_build(compiler, compile_flags, link_flags)))
        except (OSError, RuntimeError, subprocess.SubprocessError):  # no folder to write to, no OpenMP, …
            continue
    return None


def _share_torch_threads() -> bool:
    """Make the OpenMP runtime that torch has loaded visible to the kernels; False if there is none."""
    try:
        mappings = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
        runtime = next((fields[5] for fields in mappings if len(fields) == 6 and "libgomp" in fields[5]), None)
        if runtime is not None:
            ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return runtime is not None


def _build(compiler: str, compile_flags: tuple[str, ...], link_flags: tuple[str, ...]) -> Path:
    """Return the path of the shared library, compiled first if the cache has none for these sources and flags."""
    sources = [Path(__file__).parent / name for name in _SOURCES]
    flags = (*_FLAGS, *compile_flags)
    contents = (source.read_text() for source in sources)
    key = "|".join((*contents, *flags, "link", *link_flags, platform.machine(), _cpu_features()))
    target = cache_folder() / "native" / f"loops-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        linked, objects = Path(folder) / "loops.so", []
        for source in sources:
            if source.suffix == ".c":
                objects.append(Path(folder) / f"{source.stem}.o")
                _run(compiler, *flags, "-c", "-o", objects[-1], source)
        _run(compiler, "-shared", *link_flags, "-o", linked, *objects, "-lm")
        os.replace(linked, target)  # atomic: two processes that build at the same time both end with a complete file
    return target


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)


def _cpu_features() -> str:
    """Describe the processor: code compiled with -march=native must not run on another kind."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    except OSError:
        pass
    return platform.processor()
