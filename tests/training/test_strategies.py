"""What each strategy gives an example as input, and what it lets each layer attend to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import save
from reference import relative
from tiny_models import WINDOW, make, random_ids

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq.attention import RetrievalPolicy, draw_rows
from unlimiformer.errors import UnlimiformerError
from unlimiformer.hub.saved_settings import GATE, save_gate, saved_settings_text
from unlimiformer.training.strategies import STRATEGIES, Memorizing

LONG = 4 * WINDOW


def _logits(model, u, policies, ids, labels):
    with u.engine.context(policies=policies):
        return model(input_ids=ids, decoder_input_ids=labels).logits


def test_random_draws_are_uniform():
    """Each of 128 tokens is drawn equally often, within five standard deviations, in 600 draws of 16."""
    torch.manual_seed(0)
    draws, times = 16, 600
    counts = torch.zeros(LONG)
    for _ in range(times):
        drawn = draw_rows(LONG, draws)
        assert drawn.unique().numel() == draws
        counts[drawn] += 1
    share = draws / LONG
    assert float((counts - times * share).abs().max()) < 5 * (times * share * (1 - share)) ** 0.5
    assert torch.equal(draw_rows(5, draws), torch.arange(5))


def test_random_draws_new_tokens_in_every_step():
    model, ids, labels = make("bart"), random_ids(1, LONG), random_ids(1, 5, seed=4)
    strategy = STRATEGIES["random"](8)
    with Unlimiformer(model, window=WINDOW, top_k=8) as u, torch.no_grad():
        policies = [strategy.train_policy(layer, 0) for layer in range(2)]
        torch.manual_seed(0)
        first = _logits(model, u, policies, ids, labels)
        second = _logits(model, u, policies, ids, labels)
        torch.manual_seed(0)
        again = _logits(model, u, policies, ids, labels)
    assert relative(second, first) > 1e-3
    assert torch.equal(first, again)


def test_alternating_switches_with_every_batch():
    strategy = STRATEGIES["alternating"](8)
    assert [strategy.train_policy(1, step).random for step in range(6)] == [True, False, True, False, True, False]
    assert not strategy.eval_policy(1).random


def test_chunked_covers_every_token_once():
    ids = torch.arange(1000)
    parts = STRATEGIES["chunked"](8).inputs(ids, 96)
    assert torch.equal(torch.cat(parts), ids)
    assert max(part.shape[0] for part in parts) == 96


@pytest.mark.parametrize("method", ["standard", "truncate"])
def test_standard_truncates(method):
    assert torch.equal(STRATEGIES[method](8).inputs(torch.arange(1000), 96)[0], torch.arange(96))


def test_sled_attends_to_every_token():
    model, ids, labels = make("t5"), random_ids(1, LONG), random_ids(1, 5, seed=4)
    with Unlimiformer(model, window=WINDOW, top_k=4) as u, torch.no_grad():
        sled = _logits(model, u, [STRATEGIES["sled"](4).eval_policy(layer) for layer in range(2)], ids, labels)
        everything = _logits(model, u, [RetrievalPolicy(LONG)] * 2, ids, labels)
        few = _logits(model, u, [RetrievalPolicy(4)] * 2, ids, labels)
    assert relative(sled, everything) < 2e-5
    assert relative(few, everything) > 1e-3


def test_memorizing_retrieves_in_one_layer():
    strategy = Memorizing(8, layer=1)
    model = make("bart")
    with Unlimiformer(model, window=WINDOW) as u:
        strategy.prepare(model, u.engine.cross_attentions)
    assert [strategy.eval_policy(layer).retrieves for layer in range(2)] == [False, True]
    assert strategy.eval_policy(1).gate is None
    with pytest.raises(UnlimiformerError, match="layer is 5; the decoder has 2"):
        Memorizing(8, layer=5).prepare(model, u.engine.cross_attentions)


def test_gate_mixes_retrieved_tokens_with_the_first_window():
    """A large gate is retrieval alone, a small one the first window alone; in between it has a gradient."""
    model, ids, labels = make("bart"), random_ids(1, LONG), random_ids(1, 5, seed=4)
    with Unlimiformer(model, window=WINDOW, top_k=8) as u:
        strategy = Memorizing(8, layer=1, gated=True)
        strategy.prepare(model, u.engine.cross_attentions)
        gate = getattr(u.engine.cross_attentions[1].module, GATE)
        gated = [strategy.eval_policy(layer) for layer in range(2)]
        local = RetrievalPolicy(8, retrieves=False)
        with torch.no_grad():
            for value, policies in ((30.0, [local, RetrievalPolicy(8)]), (-30.0, [local, local])):
                gate.fill_(value)
                expected = _logits(model, u, policies, ids, labels)
                assert relative(_logits(model, u, gated, ids, labels), expected) < 2e-5
            gate.fill_(0.5)
        _logits(model, u, gated, ids, labels).square().sum().backward()
        assert gate.grad is not None and float(gate.grad.abs().min()) > 0
        assert gate.shape == (4,)


def test_wrapper_of_a_trained_model_loads_its_gate(tmp_path, tokenizer):
    """It computes what validation computed in training; without the gate it does not."""
    model, ids, labels = make("bart"), random_ids(1, LONG), random_ids(1, 5, seed=4)
    with Unlimiformer(model, window=WINDOW, top_k=8) as u:
        strategy = Memorizing(8, layer=1, gated=True)
        strategy.prepare(model, u.engine.cross_attentions)
        module = u.engine.cross_attentions[1].module
        with torch.no_grad():
            getattr(module, GATE).copy_(torch.tensor([-2.0, 0.0, 1.0, 3.0]))
            expected = _logits(model, u, [strategy.eval_policy(layer) for layer in range(2)], ids, labels)
        strategy.save(tmp_path)
    delattr(module, GATE)
    save(tmp_path, model, tokenizer)
    (tmp_path / "unlimiformer.json").write_text(saved_settings_text({**strategy.settings(), "window": WINDOW}, {}))
    with Unlimiformer.from_pretrained(tmp_path) as u, torch.no_grad():
        assert relative(_logits(u.model, u, u.engine.hooks.context.policies, ids, labels), expected) < 2e-5
        ungated = [replace(policy, gate=None) for policy in u.engine.hooks.context.policies]
        assert relative(_logits(u.model, u, ungated, ids, labels), expected) > 1e-3
    with Unlimiformer.from_pretrained(tmp_path, layers=[0, 1]) as u:
        assert [policy.gate is None for policy in u.engine.hooks.context.policies] == [True, False]
    save_gate(torch.zeros(3), 1, tmp_path)
    with pytest.raises(UnlimiformerError, match="gate of 3 heads, and layer 1 of the model has 4"):
        Unlimiformer.from_pretrained(tmp_path)
