"""The setting `compute_dtype="auto"`: bfloat16 for long inputs of a float32 encoder, where it is faster."""

from __future__ import annotations

import pytest
import torch
from tiny_models import WINDOW, make, random_ids
from torch import nn

from unlimiformer import Memory, Unlimiformer, UnlimiformerConfig
from unlimiformer.hub.saved_settings import saved_settings_text, with_defaults
from unlimiformer.memory import compute_dtype
from unlimiformer.memory.compute_dtype import resolve_compute_dtype
from unlimiformer.memory.encode import TokenizedInput

LONG = 150


@pytest.fixture
def measured(monkeypatch):
    """Set the seconds of a product in float32 and in bfloat16."""

    def use(in_float32, in_bfloat16):
        seconds = {torch.float32: in_float32, torch.bfloat16: in_bfloat16}
        monkeypatch.setattr(compute_dtype, "_time_product", lambda device, dtype, rows, columns: seconds[dtype])
        monkeypatch.setattr(compute_dtype, "_WIDTH", 8)

    compute_dtype._measure.cache_clear()
    yield use
    compute_dtype._measure.cache_clear()


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
    seconds = [
        compute_dtype._time_product(torch.device("cpu"), dtype, 64, 64) for dtype in (torch.float32, torch.bfloat16)
    ]
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


def test_an_input_of_one_window_does_not_depend_on_its_neighbours(measured):
    """Alone, in a batch with longer ones, and as long as the window."""
    measured(2.0, 1.0)
    model = make("bart")
    short, full, long = (random_ids(length, seed=length) for length in (WINDOW - 2, WINDOW, LONG))
    inputs = [TokenizedInput(ids, ids[:0], {}) for ids in (full, long, short, full)]
    with Unlimiformer(model, window=WINDOW, compute_dtype="auto") as u, torch.no_grad():
        batch = [memory.store.states for memory in u.engine.indexer.index_inputs(inputs)]
    with Unlimiformer(model, window=WINDOW) as u:
        expected = [u.index(ids).store.states for ids in (full, short)]
    assert torch.allclose(batch[0], expected[0], atol=1e-6) and torch.allclose(batch[2], expected[1], atol=1e-6)
    assert torch.equal(batch[0], batch[3])


def test_a_memory_says_what_was_chosen_and_every_setting_accepts_it(measured, tmp_path):
    measured(2.0, 1.0)
    model = make("bart")
    for name, setting, length, recorded in (
        ("long", "auto", LONG, "bfloat16"),
        ("short", "auto", WINDOW - 2, None),
        ("plain", None, LONG, None),
    ):
        with Unlimiformer(model, window=WINDOW, compute_dtype=setting) as u:
            assert u.index(random_ids(length), folder=tmp_path / name).spec.compute_dtype == recorded
            assert u.index(random_ids(length)).spec.compute_dtype == recorded
    for setting in ("auto", None, "bfloat16"):
        with Unlimiformer(model, window=WINDOW, compute_dtype=setting) as u:
            for name in ("long", "short", "plain"):
                u.engine.check(Memory.load(tmp_path / name))


def test_a_memory_of_another_type_is_continued(measured, tmp_path):
    """What an earlier version, or another machine, has encoded in float32 is kept."""
    measured(2.0, 1.0)
    model, ids = make("bart"), random_ids(LONG)
    with Unlimiformer(model, window=WINDOW) as u:
        states = u.index(ids, folder=tmp_path / "memory").store.all_states()
    with Unlimiformer(model, window=WINDOW, compute_dtype="auto") as u:
        again = u.index(ids, folder=tmp_path / "memory")
    assert torch.equal(again.store.all_states(), states)


def test_what_a_model_folder_says_counts_before_auto(tmp_path):
    (tmp_path / "unlimiformer.json").write_text(saved_settings_text({"compute_dtype": "bfloat16"}, {}))
    config = with_defaults(UnlimiformerConfig(compute_dtype="auto"), str(tmp_path))
    assert config.compute_dtype == "bfloat16"


def test_a_device_without_bfloat16_keeps_float32(measured, monkeypatch):
    measured(2.0, 1.0)

    def fail(*arguments):
        raise TypeError("BFloat16 is not supported")

    monkeypatch.setattr(compute_dtype, "_time_product", fail)
    assert resolve_compute_dtype("auto", nn.Linear(512, 256)) is None
