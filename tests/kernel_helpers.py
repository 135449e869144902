"""Force one implementation of the searches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from unlimiformer.datastore import exact
from unlimiformer.datastore.kernels import dispatch, native, torch_kernels

_ANYWHERE = {"torch": torch_kernels}
if sys.platform == "linux":  # elsewhere Triton is not installed; its own interpreter runs its kernels
    from unlimiformer.datastore.kernels import triton_kernels

    _ANYWHERE["triton"] = triton_kernels
IMPLEMENTATIONS = (*dispatch.available(), *_ANYWHERE)  # those that this machine has


@contextmanager
def forced(implementation: str) -> Iterator[None]:
    """Search by the kernels of one instruction set, by torch or by Triton."""
    with pytest.MonkeyPatch.context() as patch:
        if implementation in _ANYWHERE:
            patch.setattr(native, "serves", lambda states: False)
            patch.setattr(exact, "kernels_for", lambda states: _ANYWHERE[implementation])
        else:
            patch.setenv(dispatch.VARIABLE, implementation)
        yield
