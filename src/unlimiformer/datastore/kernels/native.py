"""Compiles `scan.c` once for this machine and calls it: the fast path of the exact store on a CPU.

Where there is no C compiler, `library()` is None and the store uses its plain torch path, which gives the same hits.
Knows arrays and threads; knows nothing of heads, models or memories.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from ...utils.files import cache_folder

_LARGE_PAGE, _MADV_HUGEPAGE = 1 << 21, 14
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
_FLAGS = ("-O3", "-march=native", "-funroll-loops", "-ffast-math", "-fno-finite-math-only", "-fPIC")


@cache
def library() -> ctypes.CDLL | None:
    """The compiled loops, built at the first call and kept in the user's cache folder; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or os.environ.get("UNLIMIFORMER_NATIVE") == "0":
        return None
    for openmp in _OPENMP_LINKS if _share_torch_threads() else _OPENMP_LINKS[1:]:
        try:
            return _declare(ctypes.CDLL(str(_built(compiler, *openmp))))
        except (OSError, RuntimeError, subprocess.SubprocessError):  # no folder to keep it in, no OpenMP, …
            continue
    return None


# (flags for compiling, flags for linking), best first. Torch's own pool of threads must do the work where it can be
# had: a second pool would fight with the first, whose threads spin for a while after every torch operation.
_OPENMP_LINKS = ((("-fopenmp",), ()), (("-fopenmp",), ("-fopenmp",)), ((), ()))


def _share_torch_threads() -> bool:
    """Makes the OpenMP runtime that torch has loaded visible to our library; False where it cannot be found."""
    try:
        fields = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
        runtime = next((line[5] for line in fields if len(line) == 6 and "libgomp" in line[5]), None)
        if runtime is not None:
            ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return runtime is not None


def _built(compiler: str, compile_flags: tuple[str, ...], link_flags: tuple[str, ...]) -> Path:
    here = Path(__file__).parent
    sources = [here / name for name in ("topk.h", "scan.c", "ivf.c")]
    flags = (*_FLAGS, *compile_flags)
    written = (source.read_text() for source in sources)
    key = "|".join((*written, *flags, "link", *link_flags, platform.machine(), _cpu_features()))
    target = cache_folder() / "native" / f"loops-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        linked, objects = Path(folder) / "loops.so", []
        for source in sources[1:]:
            objects.append(Path(folder) / f"{source.stem}.o")
            _run(compiler, *flags, "-c", "-o", objects[-1], source)
        _run(compiler, "-shared", *link_flags, "-o", linked, *objects, "-lm")
        os.replace(linked, target)  # atomic: two processes that build at once both end with a whole file
    return target


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def _declare(loaded: ctypes.CDLL) -> ctypes.CDLL:
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    states = (pointer, ctypes.c_int, pointer, integer)
    loaded.scan.argtypes = [*states, integer, pointer, *(integer,) * 3, pointer, pointer]
    loaded.scan.restype = ctypes.c_int
    loaded.mix.argtypes = [*states, pointer, pointer, *(integer,) * 3, pointer]
    loaded.mix.restype = None
    loaded.search_ivf.argtypes = [
        *(*(pointer,) * 6, *(integer,) * 3, ctypes.c_float, *states, *(pointer,) * 3, *(integer,) * 4, *(pointer,) * 3),
    ]
    loaded.search_ivf.restype = ctypes.c_int
    return loaded


def serves(states: torch.Tensor) -> bool:
    """Whether the compiled loops can read this array."""
    readable = states.device.type == "cpu" and states.dtype in _KINDS and states.is_contiguous()
    return readable and states.shape[0] < 2**31 and library() is not None


def scan(
    states: torch.Tensor, scales: torch.Tensor | None, queries: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best rows of `states` (S, D) for each of `queries` (N, D): their numbers and scores, (N, k) each.

    Slots that no row fills (a NaN score is never kept) have score -inf and number 0.
    """
    native = library()
    assert native is not None, "ask serves() first"
    rows, width = states.shape
    queries, count = queries.contiguous(), queries.shape[0]
    score = torch.empty((count, k))
    row = torch.empty((count, k), dtype=torch.int64)
    failed = native.scan(
        *(states.data_ptr(), _KINDS[states.dtype], _address(scales), width, rows),
        *(queries.data_ptr(), count, k, _parts_for(rows), score.data_ptr(), row.data_ptr()),
    )
    if failed:
        raise MemoryError(f"no memory to keep the {k} best of {count} queries; lower top_k or the batch size")
    return row, score


def search_ivf(
    cells: dict[str, torch.Tensor],
    states: torch.Tensor,
    scales: torch.Tensor | None,
    queries: torch.Tensor,
    coded: torch.Tensor,
    reach: torch.Tensor,
    codes_spread: float,
    candidates: int,
    k: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k best rows for each of `queries` (N, D) in cells worth looking into; see ivf.c.

    Numbers and scores, (N, k) each, and how many rows were looked at, (N,).
    """
    native = library()
    assert native is not None, "ask serves() first"
    count = queries.shape[0]
    queries, coded, reach = queries.contiguous(), coded.contiguous(), reach.contiguous()
    score, row = torch.empty((count, k)), torch.empty((count, k), dtype=torch.int64)
    scanned = torch.empty(count, dtype=torch.int64)
    names = ("codes", "start", "size", "row", "centres", "spread")
    failed = native.search_ivf(
        *(cells[name].data_ptr() for name in names),
        *(cells["size"].shape[0], cells["codes"].shape[1] * cells["codes"].shape[3], coded.shape[1]),
        codes_spread,
        *(states.data_ptr(), _KINDS[states.dtype], _address(scales), states.shape[1]),
        *(queries.data_ptr(), coded.data_ptr(), reach.data_ptr(), count, candidates, k, torch.get_num_threads()),
        *(score.data_ptr(), row.data_ptr(), scanned.data_ptr()),
    )
    if failed:
        raise MemoryError(f"no memory to keep the {candidates} best of {count} queries; lower top_k or the batch size")
    return row, score, scanned


def mix(states: torch.Tensor, scales: torch.Tensor | None, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sums of chosen rows: `rows` and `weights` (N, K) to (N, D), in float32."""
    native = library()
    assert native is not None, "ask serves() first"
    count, k = rows.shape
    rows, weights = rows.contiguous(), weights.float().contiguous()
    out = torch.empty((count, states.shape[1]))
    native.mix(
        *(states.data_ptr(), _KINDS[states.dtype], _address(scales), states.shape[1]),
        *(rows.data_ptr(), weights.data_ptr(), count, k, _parts_for(count * k), out.data_ptr()),
    )
    return out


def prefer_large_pages(array: torch.Tensor) -> None:
    """Asks Linux for large pages under an array that is not filled yet: rows are read here and there, all over it.

    Advice only: where it is not taken, or not known, nothing changes.
    """
    if array.device.type != "cpu" or array.nbytes < 4 * _LARGE_PAGE or not sys.platform.startswith("linux"):
        return
    start = -(-array.data_ptr() // _LARGE_PAGE) * _LARGE_PAGE
    length = (array.data_ptr() + array.nbytes - start) // _LARGE_PAGE * _LARGE_PAGE
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_HUGEPAGE)


def _address(array: torch.Tensor | None) -> int | None:
    return None if array is None else array.data_ptr()


def _parts_for(work: int) -> int:
    """One part for little work: handing it over costs more than it saves."""
    return 1 if work < 2048 else torch.get_num_threads()


def _cpu_features() -> str:
    """What tells one kind of processor from another: -march=native code must not travel between them."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    except OSError:
        pass
    return platform.processor()
