"""Memories: saved and loaded, shared between calls and processes, with their text and offsets."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from conftest import make_book
from memory_helpers import GREEDY, contents, reversed_book
from tiny_models import WINDOW, make

from unlimiformer import Memory, Unlimiformer, UnlimiformerError
from unlimiformer.datastore import ivf
from unlimiformer.datastore.kernels import native


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_memory_on_disk_equals_one_in_ram(model, tokenizer, book, tmp_path, dtype):
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, dtype=dtype) as u:
        in_ram = u.index(book)
        in_ram.save(tmp_path / "saved")
        (tmp_path / "book.txt").write_text(book)
        on_disk = u.index(tmp_path / "book.txt", folder=tmp_path / "streamed")
        assert contents(tmp_path / "saved") == contents(tmp_path / "streamed")
        assert on_disk.text == book == in_ram.text
        assert torch.equal(on_disk.store.states, in_ram.store.states)
        expected = u.generate(in_ram, **GREEDY).token_ids
        assert torch.equal(u.generate(on_disk, **GREEDY).token_ids, expected)


def test_a_short_input_is_stored_in_the_models_dtype(wrapped, tmp_path):
    memory = wrapped.index("a short text", folder=tmp_path / "m")
    assert memory.windows == 1 and memory.store.states.dtype is torch.float32


def test_a_memory_of_a_half_precision_model(tokenizer, book, tmp_path):
    with Unlimiformer(make("bart").half(), tokenizer, window=WINDOW) as u:
        memory = u.index(book[:900], folder=tmp_path / "m")
        assert memory.store.states.dtype is torch.float32 and memory.first_window.dtype is torch.float16


def test_offsets_are_characters_of_the_text(wrapped, tokenizer, book, tmp_path):
    memory = wrapped.index(book, prefix="a question", folder=tmp_path / "m")
    assert memory.prefix_tokens > 0 and (memory.offsets[: memory.prefix_tokens] == 0).all()
    for token, (start, end) in list(zip(memory.token_ids.tolist(), memory.offsets.tolist(), strict=True))[10:200:7]:
        if end:
            assert tokenizer.convert_tokens_to_ids(memory.text[start:end]) == token


def test_pieces_of_text_may_be_empty_but_not_half_characters(wrapped, book, tmp_path):
    memory = wrapped.index(iter([book[:500], "", book[500:900]]), folder=tmp_path / "m")
    assert memory.text == book[:900]
    with pytest.raises(UnlimiformerError, match="half of a character"):
        wrapped.index("w1 \ud800 w2", folder=tmp_path / "other")


def test_several_memories_in_one_call(wrapped, book, tmp_path):
    first = wrapped.index(book, folder=tmp_path / "first")
    second = wrapped.index(reversed_book(), folder=tmp_path / "second")
    batch = wrapped.generate([first, second, first], **GREEDY)
    single = [wrapped.generate(memory, **GREEDY).token_ids for memory in (first, second, first)]
    for output, expected in zip(batch, single, strict=True):
        assert torch.equal(output.token_ids[: len(expected)], expected)


def test_several_processes_read_one_memory(wrapped, book, tmp_path):
    memory = wrapped.index(book, folder=tmp_path / "m")
    script = (
        "import sys; from unlimiformer import Memory; print(int(Memory.load(sys.argv[1]).store.states.long().sum()))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "m")]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {int(reader.communicate()[0]) for reader in readers} == {int(memory.store.states.long().sum())}


def test_a_loaded_memory_is_read_only(wrapped, book, tmp_path):
    memory = wrapped.index(book, folder=tmp_path / "m")
    before = contents(tmp_path / "m")
    script = "import sys; from unlimiformer import Memory; Memory.load(sys.argv[1]).store.states[0, 0] = 1"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "m")], capture_output=True)
    assert done.returncode != 0
    assert contents(tmp_path / "m") == before and len(memory) > 0


@pytest.mark.parametrize("store", ["ivf", "faiss"])
def test_a_search_index_is_saved_and_loaded(model, tokenizer, tmp_path, monkeypatch, store):
    if store == "ivf" and native.library() is None:
        pytest.skip("the compiled kernels are not available")
    monkeypatch.setattr(ivf, "build_ivf", ivf.fastest_ivf)  # even where an exact scan takes no longer
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, dtype="int8", store=store, recall=0.5) as u:
        memory = u.index(make_book(4000), folder=tmp_path / "m")
        memory.save(tmp_path / "copy")
        copy = Memory.load(tmp_path / "copy")
        assert contents(tmp_path / "m") == contents(tmp_path / "copy")
        assert copy.store.describe() == memory.store.describe()
        assert copy.store.describe().startswith(store)
        assert torch.equal(u.generate(memory, **GREEDY).token_ids, u.generate(copy, **GREEDY).token_ids)
