"""Fixtures of the store tests."""

from __future__ import annotations

import os

import pytest
from kernel_helpers import IMPLEMENTATIONS, forced

from unlimiformer.datastore.kernels import native


@pytest.fixture(scope="session")
def kernels():
    """The compiled kernels. They may be switched off, but must not be missing because they failed to compile."""
    if os.environ.get("UNLIMIFORMER_NATIVE") == "0":
        pytest.skip("the compiled kernels are switched off by UNLIMIFORMER_NATIVE=0")
    if native.library() is None:
        pytest.fail("the kernels could not be compiled; install a C compiler (cc)")
    return native.library()


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    """Every implementation of the searches that this machine has."""
    with forced(request.param):
        yield request.param
