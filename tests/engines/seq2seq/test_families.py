"""The contract of every encoder–decoder family, on a tiny random model of each."""

from __future__ import annotations

import pytest
import torch
from reference import concatenated_states, logits_over, relative
from tiny_models import BUILDERS, VARIANTS, WINDOW, make, random_ids

from unlimiformer import Unlimiformer
from unlimiformer.adapters import ADAPTERS, families

TOLERANCE = 2e-5  # of the largest logit: float32 sums in another order
LENGTH = 150
ALL = 10**6
MODELS = [*BUILDERS, *VARIANTS]


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.fixture
def model(name):
    return make(name)


def _target(rows: int = 1) -> torch.Tensor:
    return random_ids(rows, 5, seed=2)


@torch.no_grad()
def _logits(model, ids, **kwargs):
    mask = kwargs.pop("attention_mask", torch.ones_like(ids))
    return model(input_ids=ids, attention_mask=mask, decoder_input_ids=_target(ids.shape[0]), **kwargs).logits


def test_every_listed_family_is_tested():
    listed = [row["family"] for row in families() if row["kind"] == "encoder–decoder"]
    assert listed == sorted(ADAPTERS)
    assert sorted(BUILDERS) == sorted(ADAPTERS)
    assert len(BUILDERS) == 25
    for family in BUILDERS:
        assert make(family).config.model_type == family


def test_an_input_within_the_window_takes_the_models_own_path(model, name):
    ids = random_ids(2, WINDOW - 8)
    plain = _logits(model, ids)
    generated = model.generate(input_ids=ids, max_new_tokens=5, do_sample=False)
    with Unlimiformer(model, window=WINDOW):
        assert torch.equal(_logits(model, ids), plain)
        assert torch.equal(model.generate(input_ids=ids, max_new_tokens=5, do_sample=False), generated)


def test_retrieving_all_of_one_window_equals_the_unwrapped_model(model, name, record_property):
    ids = random_ids(1, WINDOW - 8)
    plain = _logits(model, ids)
    with Unlimiformer(model, window=WINDOW, top_k=ALL) as u, torch.no_grad():
        inputs = u.engine.encoder_outputs([u.index(ids[0])])
        retrieved = model(**inputs, decoder_input_ids=_target()).logits
    difference = relative(retrieved, plain)
    record_property(f"oracle: {name}, one window against the unwrapped model", difference)
    assert difference < TOLERANCE


@pytest.mark.parametrize("order", ["folded", "projected"])
def test_retrieving_everything_equals_full_attention(model, name, order, monkeypatch, record_property):
    monkeypatch.setattr("unlimiformer.engines.seq2seq.attention.folding_is_cheaper", lambda *_: order == "folded")
    ids = random_ids(1, LENGTH)
    expected = logits_over(model, concatenated_states(model, ids[0], WINDOW), _target())
    with Unlimiformer(model, window=WINDOW, top_k=ALL):
        difference = relative(_logits(model, ids), expected)
    record_property(f"oracle: {name}, many windows against full attention, {order}", difference)
    assert difference < TOLERANCE


@pytest.mark.parametrize("order", ["folded", "projected"])
def test_top_k_equals_masked_attention(model, name, order, monkeypatch):
    """The differentiable path computes every score and masks some; the fast paths must choose the same tokens."""
    monkeypatch.setattr("unlimiformer.engines.seq2seq.attention.folding_is_cheaper", lambda *_: order == "folded")
    ids = random_ids(1, LENGTH)
    mask = torch.ones_like(ids)
    with Unlimiformer(model, window=WINDOW, top_k=7):
        fast = _logits(model, ids)
        dense = model(input_ids=ids, attention_mask=mask, decoder_input_ids=_target()).logits
        assert dense.requires_grad
    with Unlimiformer(model, window=WINDOW, top_k=ALL):
        everything = _logits(model, ids)
    assert relative(fast, dense.detach()) < TOLERANCE
    assert relative(fast, everything) > 100 * TOLERANCE, "top-k must matter here, or this test shows nothing"


def test_every_forward_is_restored(model, name):
    before = {module_name: module.forward for module_name, module in model.named_modules()}
    hooks = {module_name: len(module._forward_pre_hooks) for module_name, module in model.named_modules()}

    def fail_inside():
        with Unlimiformer(model, window=WINDOW):
            assert sum("forward" in module.__dict__ for module in model.modules()) >= 3
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail_inside()
    for module_name, module in model.named_modules():
        assert module.forward == before[module_name]
        assert "forward" not in module.__dict__
        assert len(module._forward_pre_hooks) == hooks[module_name]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_equals_its_rows_and_padding_is_never_retrieved(model, name, side):
    lengths = [LENGTH, 61, WINDOW - 5]
    rows = [random_ids(length, seed=length) for length in lengths]
    ids = torch.zeros((3, LENGTH), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        columns = slice(0, len(row)) if side == "right" else slice(LENGTH - len(row), LENGTH)
        ids[i, columns], mask[i, columns] = row, 1
    with Unlimiformer(model, window=WINDOW, top_k=9) as u:
        batch = _logits(model, ids, attention_mask=mask)
        with torch.no_grad():
            placeholder = model.get_encoder()(input_ids=ids, attention_mask=mask)[0]
        memories = u.engine.hooks.placeholders.find(placeholder)
        assert [len(memory) for memory in memories] == lengths
        assert all(torch.equal(memory.token_ids, row) for memory, row in zip(memories, rows, strict=True))
        target = _target(3)
        for i, row in enumerate(rows):
            inputs = u.engine.encoder_outputs([u.index(row)])
            with torch.no_grad():
                single = model(**inputs, decoder_input_ids=target[i : i + 1]).logits
            assert relative(batch[i : i + 1], single) < TOLERANCE


BEAMS = {"max_new_tokens": 6, "min_new_tokens": 6, "num_beams": 3, "do_sample": False}
CACHE_CHANGES_THE_PLAIN_MODEL = {"fsmt", "prophetnet"}  # in transformers itself, unwrapped


def test_beams_of_a_batch_equal_single_runs(model, name):
    rows = [random_ids(LENGTH, seed=3), random_ids(70, seed=4)]
    with Unlimiformer(model, window=WINDOW, top_k=9) as u:
        for row, out in zip(rows, u.generate(rows, **BEAMS), strict=True):
            assert torch.equal(u.generate(row, **BEAMS).sequences, out.sequences)


def test_the_cache_changes_nothing(model, name):
    """Except where it changes the plain model's output too."""
    short = random_ids(1, WINDOW - 8)
    plain = [model.generate(input_ids=short, use_cache=cache, **BEAMS) for cache in (True, False)]
    assert torch.equal(*plain) == (name not in CACHE_CHANGES_THE_PLAIN_MODEL)
    with Unlimiformer(model, window=WINDOW, top_k=9) as u:
        cached, uncached = (u.generate(random_ids(LENGTH), use_cache=c, **BEAMS).sequences for c in (True, False))
    if name not in CACHE_CHANGES_THE_PLAIN_MODEL:
        assert torch.equal(cached, uncached)


def test_the_first_token_retrieves(model, name):
    ids = random_ids(1, LENGTH)
    states = concatenated_states(model, ids[0], WINDOW)
    with Unlimiformer(model, window=WINDOW, top_k=ALL):
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=3,
            min_new_tokens=3,
            do_sample=False,
            num_beams=1,
            output_logits=True,
            return_dict_in_generate=True,
        )
    start = out.sequences[:, :1]
    assert relative(out.logits[0][:, 3:], logits_over(model, states, start)[:, -1][:, 3:]) < TOLERANCE
    truncated = logits_over(model, concatenated_states(model, ids[0, :WINDOW], WINDOW), start)[:, -1]
    assert relative(out.logits[0], truncated) > 100 * TOLERANCE
