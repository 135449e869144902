"""What the machine can do at best: how fast it reads memory and multiplies, measured before anything else."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..datastore.kernels import dispatch
from ..utils.system import cpu_count

_READ_BYTES = 1 << 28  # far more than a cache holds
_PRODUCT = (1024, 1024, 4096)  # rows, inner and columns of the product that is timed
_REPEATS = 7


@dataclass(frozen=True)
class Machine:
    """A processor and its rates.

    Parameters
    ----------
    kernels : instruction set of the C kernels; None without them
    bytes_per_second : read from memory, with all threads
    float32_per_second, bfloat16_per_second : multiplications and additions in products of matrices
    """

    processor: str
    threads: int
    kernels: str | None
    bytes_per_second: float
    float32_per_second: float
    bfloat16_per_second: float

    @classmethod
    def measure(cls) -> Machine:
        """Measure the rates with as many threads as torch uses; the best of several counts."""
        array = torch.ones(_READ_BYTES // 4)
        rows, inner, columns = _PRODUCT
        rates = {}
        for dtype in (torch.float32, torch.bfloat16):
            left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
            rates[dtype] = 2 * rows * inner * columns / _best_time(partial(torch.mm, left, right))
        return cls(
            processor=_processor_name(),
            threads=torch.get_num_threads(),
            kernels=dispatch.chosen(),
            bytes_per_second=array.nbytes / _best_time(array.sum),
            float32_per_second=rates[torch.float32],
            bfloat16_per_second=rates[torch.bfloat16],
        )

    def reading_share(self, read: float, seconds: float) -> float:
        """Bytes that must be read, as a share of what can be read in this time; above 1 if a cache holds them."""
        return read / (seconds * self.bytes_per_second)

    def product_share(self, operations: float, seconds: float, dtype: torch.dtype = torch.float32) -> float:
        """Multiplications and additions, as a share of what can be done in this time."""
        rate = self.bfloat16_per_second if dtype == torch.bfloat16 else self.float32_per_second
        return operations / (seconds * rate)

    def __str__(self) -> str:
        return (
            f"{self.processor}, {self.threads} of {cpu_count()} threads, kernels: {self.kernels or 'torch'}; reads "
            f"{self.bytes_per_second / 1e9:.0f} GB/s, multiplies {self.float32_per_second / 1e9:,.0f} GFLOP/s in "
            f"float32 and {self.bfloat16_per_second / 1e9:,.0f} in bfloat16"
        )


def _best_time(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(1 + _REPEATS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def _processor_name() -> str:
    """The processor's name on Linux; elsewhere what the platform says."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
