"""What a process takes of the machine."""

from __future__ import annotations

import os
import sys


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def is_first_process() -> bool:
    """Whether this is the one of several processes, started by `torchrun` or the like, that speaks for all."""
    return os.environ.get("RANK", "0") == "0"
