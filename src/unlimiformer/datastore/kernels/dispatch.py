"""Choose the kernels for this processor's instruction set: `UNLIMIFORMER_KERNELS` names one, else the best is used."""

from __future__ import annotations

import os
from functools import cache

from ...errors import InputError
from .compile import INSTRUCTION_SETS
from .library import library

VARIABLE = "UNLIMIFORMER_KERNELS"


@cache
def available() -> tuple[str, ...]:
    """Return the instruction sets whose kernels run on this processor, best first; none without compiled kernels."""
    kernels = library()
    if kernels is None:
        return ()
    return tuple(n for n in INSTRUCTION_SETS if hasattr(kernels, f"scan_{n}") and kernels.runs_here(n.encode()))


def chosen() -> str | None:
    """Return the instruction set of the kernels that are called; None without compiled kernels."""
    asked, names = os.environ.get(VARIABLE), available()
    if asked and os.environ.get("UNLIMIFORMER_NATIVE") != "0" and asked not in names:
        here = f"one of {', '.join(names)}, the kernels that run on this machine" if names else "a C compiler (cc)"
        raise InputError(f"{VARIABLE} is {asked!r}; expected {here}; unset it to use the best kernels")
    return asked or next(iter(names), None) if names else None
