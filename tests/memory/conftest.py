"""Fixtures of the memory tests: a wrapped model, and a text of many windows."""

from __future__ import annotations

import pytest
from conftest import make_book
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer


@pytest.fixture(scope="module")
def model():
    return make("bart")


@pytest.fixture
def wrapped(model, tokenizer):
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, dtype="int8") as u:
        yield u


@pytest.fixture
def book():
    return make_book(3000)
