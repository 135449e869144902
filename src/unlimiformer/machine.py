"""What a process takes of the machine."""

from __future__ import annotations

import sys


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
