"""The setting `compute_dtype="auto"`: bfloat16 for long inputs of a float32 encoder, where it is faster."""

from __future__ import annotations

import pytest
import torch
from tiny_models import WINDOW, make, random_ids
from torch import nn

from unlimiformer import Memory, MemoryMismatchError, Unlimiformer
from unlimiformer.memory import compute_dtype
from unlimiformer.memory.compute_dtype import resolve_compute_dtype

LONG = 150


@pytest.fixture
def measured(monkeypatch):
    """Set the seconds of a product in float32 and in bfloat16."""

    def use(in_float32, in_bfloat16):
        seconds = {torch.float32: in_float32, torch.bfloat16: in_bfloat16}
        monkeypatch.setattr(compute_dtype, "_time_product", lambda device, dtype, rows, columns: seconds[dtype])
        monkeypatch.setattr(compute_dtype, "_WIDTH", 8)

    compute_dtype._is_bfloat16_faster.cache_clear()
    yield use
    compute_dtype._is_bfloat16_faster.cache_clear()


@pytest.mark.parametrize(
    ("in_float32", "in_bfloat16", "expected"), [(2.0, 1.0, "bfloat16"), (1.2, 1.0, None), (1.0, 5.0, None)]
)
def test_the_faster_type_is_taken(measured, in_float32, in_bfloat16, expected):
    measured(in_float32, in_bfloat16)
    assert resolve_compute_dtype("auto", nn.Linear(512, 256)) == expected


def test_a_setting_is_not_measured(measured):
    measured(1.0, 5.0)
    assert resolve_compute_dtype("bfloat16", nn.Linear(512, 256)) == "bfloat16"
    assert resolve_compute_dtype(None, nn.Linear(512, 256)) is None


def test_half_precision_and_narrow_encoders_are_left_as_they_are(measured):
    measured(2.0, 1.0)
    assert resolve_compute_dtype("auto", nn.Linear(512, 256).bfloat16()) is None
    assert resolve_compute_dtype("auto", nn.Linear(512, 4)) is None
    assert resolve_compute_dtype("auto", nn.Embedding(10, 512)) is None


def test_a_product_is_timed_in_each_type():
    seconds = [compute_dtype._time_product("cpu", dtype, 64, 64) for dtype in (torch.float32, torch.bfloat16)]
    assert all(0 < of_type < 60 for of_type in seconds)


def test_auto_encodes_long_inputs_in_the_chosen_type(measured):
    measured(2.0, 1.0)
    model, ids = make("bart"), random_ids(LONG)
    states = {}
    for setting in ("auto", "bfloat16", None):
        with Unlimiformer(model, window=WINDOW, compute_dtype=setting) as u:
            states[setting] = u.index(ids).store.states
    assert torch.equal(states["auto"], states["bfloat16"])
    assert not torch.equal(states["auto"], states[None])


def test_auto_leaves_an_input_of_one_window_as_it_is(measured):
    measured(2.0, 1.0)
    model, ids = make("bart"), random_ids(WINDOW - 2)
    states = {}
    for setting in ("auto", None):
        with Unlimiformer(model, window=WINDOW, compute_dtype=setting) as u:
            states[setting] = u.index(ids).store.states
    assert torch.equal(states["auto"], states[None])


def test_a_memory_says_what_was_chosen_and_auto_accepts_either(measured, tmp_path):
    measured(2.0, 1.0)
    model = make("bart")
    for setting, recorded in (("auto", "bfloat16"), (None, None)):
        with Unlimiformer(model, window=WINDOW, compute_dtype=setting) as u:
            memory = u.index(random_ids(LONG), folder=tmp_path / str(setting))
            assert memory.spec.compute_dtype == recorded
    with Unlimiformer(model, window=WINDOW, compute_dtype="auto") as u:
        u.engine.check(Memory.load(tmp_path / "auto"))
        u.engine.check(Memory.load(tmp_path / "None"))
    with Unlimiformer(model, window=WINDOW) as u, pytest.raises(MemoryMismatchError, match="compute_dtype bfloat16"):
        u.engine.check(Memory.load(tmp_path / "auto"))
