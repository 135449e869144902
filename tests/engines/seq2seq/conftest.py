"""Shared by the tests of the encoder–decoder engine."""

from __future__ import annotations

import pytest
from tiny_models import make


@pytest.fixture(params=["bart", "t5"])
def model(request):
    return make(request.param)
