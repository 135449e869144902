"""Fixtures of the store tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from unlimiformer.datastore.kernels import dispatch, native


@pytest.fixture(scope="session")
def kernels():
    """The compiled kernels. They may be switched off, but must not be missing because they failed to compile."""
    if os.environ.get("UNLIMIFORMER_NATIVE") == "0":
        pytest.skip("the compiled kernels are switched off by UNLIMIFORMER_NATIVE=0")
    if native.library() is None:
        pytest.fail("the kernels could not be compiled; install a C compiler (cc)")
    return native.library()


@contextmanager
def forced(implementation: str) -> Iterator[None]:
    """Search by the kernels of one instruction set, or by torch."""
    with pytest.MonkeyPatch.context() as patch:
        if implementation == "torch":
            patch.setattr(native, "serves", lambda states: False)
        else:
            patch.setenv(dispatch.VARIABLE, implementation)
        yield


@pytest.fixture(scope="module", params=[*dispatch.available(), "torch"])
def implementation(request):
    """Every implementation of the searches that this machine has."""
    with forced(request.param):
        yield request.param
