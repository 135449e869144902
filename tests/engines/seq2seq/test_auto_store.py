"""The store "auto": which search a memory gets."""

from __future__ import annotations

import pytest
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq import engine


@pytest.fixture
def built(monkeypatch):
    """The names of the stores that were built."""
    names = []
    monkeypatch.setattr(engine, "build", lambda name, exact, *_: names.append(name) or exact)
    return names


@pytest.mark.parametrize(
    ("store", "more", "names"),
    [("exact", 0, []), ("auto", 0, ["ivf"]), ("auto", 1, []), ("ivf", 1, ["ivf"])],
)
def test_only_long_memories_get_cells(tokenizer, book, monkeypatch, built, store, more, names):
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=12, store="exact") as u:
        length = len(u.index(book))
    monkeypatch.setattr(engine, "_LONG_MEMORY", length + more)
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=12, store=store) as u:
        u.index(book)
    assert built == names


def test_a_decoder_only_model_takes_it_too(tokenizer, book, built):
    with Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, top_k=48, store="auto") as u:
        assert u.index(book).store.describe().startswith("exact")
    assert built == []
