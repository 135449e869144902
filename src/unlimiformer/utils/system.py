"""What a process takes of the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    try:  # what `resource` tells is never less than what the process had that started this one
        told = Path("/proc/self/status").read_text()
        return int(told.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def is_first_process() -> bool:
    """Whether this is the one of several processes, started by `torchrun` or the like, that speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def cpu_count() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int | None:
    """Bytes that could be had now, by the machine and by the container around us; None where nobody tells."""
    try:
        told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(told["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        return free if limit == "max" else min(free, max(0, int(limit) - used))
    except (OSError, ValueError):
        return free
