"""Load the compiled kernels: those of the wheel, or else compiled once for this machine, in the user's cache folder.

One library holds the kernels for every instruction set of the processor's family; `dispatch` chooses among them.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path

from ...utils.files import cache_folder
from .compile import FOLDER, OPENMP_MODES, SHARED_THREADS, OpenMPMode, compile_library, find_compiler, library_name


@cache
def library() -> ctypes.CDLL | None:
    """Load the kernels; None if they cannot be compiled, or with `UNLIMIFORMER_NATIVE=0` in the environment."""
    if os.environ.get("UNLIMIFORMER_NATIVE") == "0":
        return None
    can_share = _share_torch_threads()
    for mode in OPENMP_MODES:
        if mode == SHARED_THREADS and not can_share:
            continue
        try:
            return ctypes.CDLL(str(_find_or_compile(mode)))
        except (OSError, RuntimeError, subprocess.SubprocessError):  # no compiler, no folder to write to, no OpenMP, …
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


def _find_or_compile(mode: OpenMPMode) -> Path:
    name = library_name(mode)
    packaged, cached = FOLDER / name, cache_folder() / "native" / name
    if packaged.exists():
        return packaged
    if not cached.exists():
        compiler = find_compiler()
        if compiler is None:
            raise FileNotFoundError("there is no C compiler")
        compile_library(compiler, mode, cached)
    return cached
