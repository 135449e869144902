"""Models of no known family: their adapter is guessed, and verified against the model itself."""

from __future__ import annotations

import pytest
import torch
from reference import concatenated_states, logits_over, relative
from tiny_models import WINDOW, make, random_ids

from unlimiformer import Unlimiformer, UnsupportedModelError
from unlimiformer.adapters import ADAPTERS
from unlimiformer.adapters.generic import _GuessedAttention

LENGTH = 150
SETTINGS = [{}, {"top_k": 1}, {"prefix": "w1 w2"}, {"dtype": "int8"}]


@pytest.fixture
def unregister(monkeypatch):
    """Removes a family from the registry: its models are then of no known family."""
    return lambda name: monkeypatch.delitem(ADAPTERS, name)


@pytest.mark.parametrize("name", ["bart", "mbart", "nllb-moe", "seamless_m4t"])
def test_a_good_guess_equals_full_attention(unregister, name):
    unregister(name)
    model, ids, target = make(name), random_ids(1, LENGTH), random_ids(1, 5, seed=2)
    expected = logits_over(model, concatenated_states(model, ids[0], WINDOW), target)
    with Unlimiformer(model, window=WINDOW, top_k=10**6), torch.no_grad():
        got = model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=target).logits
    assert relative(got, expected) < 2e-5


@pytest.mark.parametrize("name", ["t5gemma2", "fsmt"])
def test_a_model_without_a_guess_is_refused(unregister, name):
    unregister(name)
    model = make(name)
    with pytest.raises(UnsupportedModelError, match="has no cross-attention of a known shape"):
        Unlimiformer(model, window=WINDOW)
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_good_guess_is_accepted_with_any_settings(unregister, tokenizer, settings):
    unregister("bart")
    with Unlimiformer(make("bart"), tokenizer, window=WINDOW, **settings) as u:
        assert u.engine.active


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_wrong_guess_is_refused(unregister, monkeypatch, tokenizer, settings):
    unregister("bart")
    monkeypatch.setattr(_GuessedAttention, "scaling", property(lambda self: 1.0))
    model = make("bart")
    with pytest.raises(UnsupportedModelError, match="did not reproduce the model"):
        Unlimiformer(model, tokenizer, window=WINDOW, **settings)
    assert not any("forward" in module.__dict__ for module in model.modules())
