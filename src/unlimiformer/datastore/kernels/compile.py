"""Compile the C kernels once for this machine and load them; the result is cached in the user's cache folder.

One library holds the kernels for every instruction set of the processor's family; `dispatch` chooses among them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from ...utils.files import cache_folder

# The instruction sets of each family of processors, best first, and the flags that let the compiler use them.
_X86 = {
    "avx512": ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512"),
    "avx2": ("-mavx2", "-mfma"),
    "scalar": (),
}
_ARM: dict[str, tuple[str, ...]] = {"neon": ("-march=armv8.2-a+dotprod",), "scalar": ()}
_FAMILIES = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = _FAMILIES.get(platform.machine().lower(), {"scalar": ()})

_FOLDER = Path(__file__).parent
_KERNELS = ("scan.c", "mix.c", "ivf.c")  # compiled for each instruction set
_COMMON = "cpu.c"  # compiled once, without any
_FLAGS = ("-O3", "-funroll-loops", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-fPIC")
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
    flags = (*_FLAGS, *compile_flags)
    contents = (source.read_text() for source in sorted(_FOLDER.rglob("*.[ch]")))
    key = "|".join((*contents, *flags, "link", *link_flags, platform.machine(), repr(INSTRUCTION_SETS)))
    target = cache_folder() / "native" / f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        linked, objects = Path(folder) / "kernels.so", [_compile(compiler, flags, _COMMON, Path(folder) / "cpu.o")]
        for instructions, own in INSTRUCTION_SETS.items():
            own_flags = (*flags, *own, f"-DINSTRUCTIONS={instructions}")
            files = [Path(folder) / f"{source}.{instructions}.o" for source in _KERNELS]
            too_old = [subprocess.CalledProcessError] if own else []  # a compiler that does not know the instructions
            with suppress(*too_old):
                objects += [_compile(compiler, own_flags, *pair) for pair in zip(_KERNELS, files, strict=True)]
        _run(compiler, "-shared", *link_flags, "-o", linked, *objects, "-lm")
        os.replace(linked, target)  # atomic: two processes that build at the same time both end with a complete file
    return target


def _compile(compiler: str, flags: tuple[str, ...], source: str, target: Path) -> Path:
    _run(compiler, *flags, "-c", "-o", target, _FOLDER / source)
    return target


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)
