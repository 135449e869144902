"""Memory and processors of the machine, as this process sees them."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes; 0 if the system does not report it."""
    try:  # preferred: `getrusage` also counts the peak of the process that started this one
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def is_first_process() -> bool:
    """Whether this process has rank 0 among those started by `torchrun` or a similar launcher."""
    return os.environ.get("RANK", "0") == "0"


def cpu_count() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int | None:
    """Return the bytes of memory that are available, limited by the container if there is one; None if unknown."""
    try:
        meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(meminfo["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        cgroup = Path("/sys/fs/cgroup")
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        return available if limit == "max" else min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        return available
