"""Memories that an earlier version wrote are read, queried and finished; see `tests/data/memories_v2`."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from stored_memories import FOLDER, GENERATION, PROMPT, SETTINGS, TEXT, build_model

from unlimiformer import Memory, Unlimiformer, UnlimiformerError
from unlimiformer.engines.causal import engine as causal_engine

GENERATED = json.loads((FOLDER / "generated.json").read_text())
FINISHED = ["encoder-decoder-exact", "encoder-decoder-ivf", "decoder-only"]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))


def _assert_same_states(old: Memory, new: Memory) -> None:
    """Equal up to the rounding of the stored dtype, which may differ by one step between processors."""
    states, expected = (memory.store.all_states().float() for memory in (old, new))
    steps = {torch.int8: 1 / 127, torch.bfloat16: 1 / 128, torch.float32: 1e-5}
    assert old.store.states.dtype is new.store.states.dtype
    largest = expected.abs().amax(dim=1, keepdim=True)
    assert ((states - expected).abs() <= 1.01 * steps[old.store.states.dtype] * largest).all()
    assert torch.equal(old.token_ids.long(), new.token_ids.long()) and torch.equal(old.offsets, new.offsets)
    assert old.text == new.text == TEXT


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_memory_gives_the_same_tokens(name, tokenizer, monkeypatch):
    memory = Memory.load(FOLDER / name, verify=True)
    with Unlimiformer(build_model(name), tokenizer, **SETTINGS[name]) as u:
        output = u.generate(memory, prompt=PROMPT, **GENERATION)
        new = u.index(TEXT)
        assert output.token_ids.tolist() == u.generate(new, prompt=PROMPT, **GENERATION).token_ids.tolist()
    assert output.token_ids.tolist() == GENERATED[name]
    monkeypatch.setattr(causal_engine, "_EARLIEST_HEADS", 8)  # the earlier version stored the keys of all of the best
    with Unlimiformer(build_model(name), tokenizer, **SETTINGS[name]) as u:
        new = u.index(TEXT)
    assert memory.spec == new.spec and memory.windows == new.windows
    _assert_same_states(memory, new)


def test_the_search_index_is_restored():
    assert Memory.load(FOLDER / "encoder-decoder-ivf").store.describe().startswith("ivf with 107 cells")


@pytest.mark.parametrize("name", ["encoder-decoder-exact", "encoder-decoder-ivf"])
def test_appending_reuses_the_windows(name, tokenizer, tmp_path):
    shutil.copytree(FOLDER / name, tmp_path / "m")
    progress = []
    with Unlimiformer(build_model(name), tokenizer, **SETTINGS[name]) as u:
        memory = u.index(" w1 w2 w3", folder=tmp_path / "m", append=True, progress=lambda *done: progress.append(done))
    assert memory.text.split() == [*TEXT.split(), "w1", "w2", "w3"]
    assert 0 < progress[0][0] < progress[0][1]


def test_an_interrupted_write_is_finished(tokenizer, tmp_path):
    name = "encoder-decoder-partial"
    shutil.copytree(FOLDER / name, tmp_path / "m")
    with pytest.raises(UnlimiformerError, match="is not finished"):
        Memory.load(tmp_path / "m")
    progress = []
    with Unlimiformer(build_model(name), tokenizer, **SETTINGS[name]) as u:
        memory = u.index(TEXT, folder=tmp_path / "m", progress=lambda *done: progress.append(done))
        tokens = u.generate(memory, prompt=PROMPT, **GENERATION).token_ids.tolist()
        new = u.index(TEXT)
    assert progress[0] == (8, memory.windows) and memory.windows > 8
    assert tokens == GENERATED[name]
    _assert_same_states(Memory.load(tmp_path / "m", verify=True), new)


def test_another_model_is_noticed(tokenizer):
    name = "encoder-decoder-exact"
    model = build_model(name)
    model.get_encoder().layers[0].fc1.weight.data[0, 0] += 1
    with Unlimiformer(model, tokenizer, **SETTINGS[name]) as u, pytest.raises(UnlimiformerError, match="another model"):
        u.generate(Memory.load(FOLDER / name), prompt=PROMPT, **GENERATION)
