"""Fixtures of the command line tests: saved tiny models, and a text in a file."""

from __future__ import annotations

import pytest
from conftest import save
from tiny_causal_models import tiny_decoder
from tiny_models import make


@pytest.fixture(scope="session")
def t5_folder(tmp_path_factory, tokenizer):
    """A saved encoder–decoder with its tokenizer."""
    return save(tmp_path_factory.mktemp("models"), make("t5"), tokenizer)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory, tokenizer):
    """A saved decoder-only model with its tokenizer."""
    return save(tmp_path_factory.mktemp("models"), tiny_decoder("llama"), tokenizer)


@pytest.fixture
def book_file(tmp_path, book):
    """A file of 200 words."""
    path = tmp_path / "book.txt"
    path.write_text(book)
    return str(path)
