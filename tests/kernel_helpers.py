"""Force one implementation of the searches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from unlimiformer.datastore.kernels import dispatch, native

IMPLEMENTATIONS = (*dispatch.available(), "torch")  # those that this machine has


@contextmanager
def forced(implementation: str) -> Iterator[None]:
    """Search by the kernels of one instruction set, or by torch."""
    with pytest.MonkeyPatch.context() as patch:
        if implementation == "torch":
            patch.setattr(native, "serves", lambda states: False)
        else:
            patch.setenv(dispatch.VARIABLE, implementation)
        yield
