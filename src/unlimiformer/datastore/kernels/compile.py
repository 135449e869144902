"""Compile the C kernels into one library. `setup.py` runs this file alone: it imports the standard library only."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# The instruction sets of each family of processors, best first, and the flags that let the compiler use them.
_X86 = {
    "avx512": ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512"),
    "avx2": ("-mavx2", "-mfma"),
    "scalar": (),
}
_ARM: dict[str, tuple[str, ...]] = {"neon": ("-march=armv8.2-a+dotprod",), "scalar": ()}
_FAMILIES = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = _FAMILIES.get(platform.machine().lower(), {"scalar": ()})

FOLDER = Path(__file__).parent
_KERNELS = ("scan.c", "mix.c", "ivf.c")  # compiled for each instruction set
_COMMON = "cpu.c"  # compiled once, without any
_FLAGS = ("-O3", "-funroll-loops", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-fPIC")
_TIMEOUT = 120


class OpenMPMode(NamedTuple):
    """A way to use OpenMP: flags for compiling and for linking."""

    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]


SHARED_THREADS = OpenMPMode(("-fopenmp",), ())
"""Without a flag for linking, the kernels run on torch's own pool of threads. A second pool would compete with it, as
its threads keep spinning after every torch operation."""
OPENMP_MODES = (SHARED_THREADS, OpenMPMode(("-fopenmp",), ("-fopenmp",)), OpenMPMode((), ()))
"""All ways, best first."""


def find_compiler() -> str | None:
    """Return the path of a C compiler."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def library_name(mode: OpenMPMode) -> str:
    """Return the name of the library, which changes with the sources, the flags and the family of processors."""
    contents = (source.read_text() for source in sorted(FOLDER.rglob("*.[ch]")))
    flags = (*_FLAGS, *mode.compile_flags)
    key = "|".join((*contents, *flags, "link", *mode.link_flags, platform.machine(), repr(INSTRUCTION_SETS)))
    return f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"


def compile_library(compiler: str, mode: OpenMPMode, target: Path) -> None:
    """Compile the kernels for every instruction set that the compiler knows."""
    flags = (*_FLAGS, *mode.compile_flags)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        linked, objects = Path(folder) / "kernels.so", [_compile(compiler, flags, _COMMON, Path(folder) / "cpu.o")]
        for instructions, own in INSTRUCTION_SETS.items():
            own_flags = (*flags, *own, f"-DINSTRUCTIONS={instructions}")
            files = [Path(folder) / f"{source}.{instructions}.o" for source in _KERNELS]
            too_old = [subprocess.CalledProcessError] if own else []  # a compiler that does not know the instructions
            with suppress(*too_old):
                objects += [_compile(compiler, own_flags, *pair) for pair in zip(_KERNELS, files, strict=True)]
        _run(compiler, "-shared", *mode.link_flags, "-o", linked, *objects, "-lm")
        os.replace(linked, target)  # atomic: two processes that build at the same time both end with a complete file


def _compile(compiler: str, flags: tuple[str, ...], source: str, target: Path) -> Path:
    _run(compiler, *flags, "-c", "-o", target, FOLDER / source)
    return target


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)
