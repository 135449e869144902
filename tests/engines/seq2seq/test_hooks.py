"""The hooks: calls of a wrapped model's `forward`, what they refuse, and that they can be removed."""

from __future__ import annotations

import pytest
import torch
from reference import concatenated_states, differentiable_states, encoded, logits_over, relative
from tiny_models import WINDOW, long_input, make, random_ids

from unlimiformer import Unlimiformer, UnlimiformerError
from unlimiformer.text.windows import plan_windows

LENGTH = 150
ALL = 10**6


def _gradients(model) -> dict[str, torch.Tensor]:
    """The gradients of all parameters, which are then set to zero."""
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return gradients


def test_labels_give_the_loss_over_the_long_input(model):
    inputs, labels = long_input(LENGTH), random_ids(1, 6, seed=9)
    states = concatenated_states(model, inputs["input_ids"][0], WINDOW)
    with Unlimiformer(model, window=WINDOW, top_k=ALL), torch.no_grad():
        got = model(**inputs, labels=labels)
    with torch.no_grad():
        expected = model(**encoded(states), labels=labels)
    assert abs(float(got.loss - expected.loss)) < 1e-5
    assert relative(got.logits, expected.logits) < 2e-5


def test_gradients_reach_encoder_and_decoder(model):
    """Every parameter's gradient equals that of full attention over the concatenated states."""
    inputs, labels = long_input(LENGTH), random_ids(1, 6, seed=9)
    with Unlimiformer(model, window=WINDOW, top_k=ALL):
        model(**inputs, labels=labels).loss.backward()
    got = _gradients(model)
    states = differentiable_states(model, inputs["input_ids"][0], WINDOW)
    model(**encoded(states), labels=labels).loss.backward()
    expected = _gradients(model)
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(got[name], gradient, atol=1e-5 + 1e-4 * float(gradient.abs().max())), name


def test_gradients_of_key_and_value_projections_alone(model):
    """They must not be lost when neither queries nor states require gradients."""
    inputs, labels = long_input(LENGTH), random_ids(1, 6, seed=9)
    cross_attention = [n for n, _ in model.named_parameters() if "encoder_attn" in n or "EncDecAttention" in n]
    trained = [n for n in cross_attention if any(f".{p}." in n for p in ("k_proj", "v_proj", "k", "v"))]
    assert len(trained) >= 4
    by_run = []
    for train_all in (True, False):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(train_all or name in trained)
        with Unlimiformer(model, window=WINDOW, top_k=9):
            model(**inputs, labels=labels).loss.backward()
        by_run.append(_gradients(model))
    assert all(torch.allclose(by_run[0][name], by_run[1][name], atol=1e-6) for name in trained)


def test_long_inputs_embeds_are_refused(model):
    embeddings = model.get_input_embeddings()(random_ids(1, LENGTH))
    with Unlimiformer(model, window=WINDOW), pytest.raises(UnlimiformerError, match="inputs_embeds has 150 positions"):
        model(inputs_embeds=embeddings, decoder_input_ids=random_ids(1, 2))


def test_short_inputs_embeds_take_the_models_own_path(model):
    embeddings = model.get_input_embeddings()(random_ids(1, 20))
    plain = model(inputs_embeds=embeddings, decoder_input_ids=random_ids(1, 2)).logits
    with Unlimiformer(model, window=WINDOW):
        assert torch.equal(model(inputs_embeds=embeddings, decoder_input_ids=random_ids(1, 2)).logits, plain)


def test_a_removed_wrapper_refuses_to_work(model):
    with Unlimiformer(model, window=WINDOW) as u:
        memory = u.index(random_ids(LENGTH))
    for call in (lambda: u.generate(memory), lambda: u.index(random_ids(LENGTH))):
        with pytest.raises(UnlimiformerError, match="the wrapper was removed"):
            call()


def test_wrapping_twice_is_refused_and_changes_nothing(model):
    with Unlimiformer(model, window=WINDOW):
        with pytest.raises(UnlimiformerError, match="wrapped already"):
            Unlimiformer(model, window=WINDOW)
        assert model.generate(**long_input(LENGTH), max_new_tokens=2).shape[0] == 1
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_the_context_is_restored_after_an_error(model):
    def fail_inside(engine):
        with engine.context(focus=40):
            assert engine.hooks.context.focus == 40
            raise RuntimeError("on purpose")

    with Unlimiformer(model, window=WINDOW, top_k=9) as u:
        before = u.engine.hooks.context
        with pytest.raises(RuntimeError, match="on purpose"):
            fail_inside(u.engine)
        assert u.engine.hooks.context is before


def test_tracing_ends_with_the_call(model):
    with Unlimiformer(model, window=WINDOW, top_k=9) as u:
        assert u.generate(random_ids(LENGTH), provenance=True, max_new_tokens=3).provenance is not None
        assert u.engine.hooks.context.trace is None


def test_global_attention_of_led_is_cut_with_the_ids():
    """By hand: each window gets its part of the mask."""
    model, ids, target = make("led"), random_ids(1, LENGTH), random_ids(1, 5, seed=2)
    global_mask = torch.zeros_like(ids)
    global_mask[0, ::10] = 1
    parts = []
    for window in plan_windows(LENGTH, WINDOW):
        window_ids, window_mask = (values[:, window.start : window.end] for values in (ids, global_mask))
        with torch.no_grad():
            states = model.get_encoder()(
                window_ids, attention_mask=torch.ones_like(window_ids), global_attention_mask=window_mask
            )[0]
        parts.append(states[:, window.keep_start - window.start : window.keep_end - window.start])
    expected = logits_over(model, torch.cat(parts, dim=1), target)
    with Unlimiformer(model, window=WINDOW, top_k=ALL), torch.no_grad():
        call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": target}
        got = model(**call, global_attention_mask=global_mask).logits
        without = model(**call).logits
    assert relative(got, expected) < 2e-5
    assert relative(got, without) > 1e-3


def test_router_logits_of_a_long_input_are_refused():
    with (
        Unlimiformer(make("switch_transformers"), window=WINDOW) as u,
        pytest.raises(UnlimiformerError, match="router"),
    ):
        u.model(input_ids=random_ids(1, LENGTH), labels=random_ids(1, 5, seed=2), output_router_logits=True)
