"""Gradients of long inputs against the slow, obvious way."""

from __future__ import annotations

import pytest
import torch
from reference import differentiable_states, relative
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq import attention_grad as recomputing
from unlimiformer.engines.seq2seq.placeholder import PlaceholderOutput
from unlimiformer.memory import indexer as reading

FAMILIES = ("bart", "t5", "pegasus", "led", "marian", "mt5")
TOLERANCE = 2e-5


def _model(family: str, dropout: float = 0.0):
    model = make(family)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = dropout
    return model.train()


def _batch(tokens: int):
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(3, 90, (1, tokens), generator=generator), torch.randint(3, 90, (1, 9), generator=generator)


def _gradients(model, **inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _same(got, expected):
    assert relative(got[0], expected[0]) < TOLERANCE
    assert set(got[1]) == set(expected[1])
    largest = max(float(gradient.abs().max()) for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        assert float((got[1][name] - gradient).abs().max()) < TOLERANCE * largest, name


@pytest.mark.parametrize("family", FAMILIES)
def test_an_input_within_the_window_trains_as_in_the_plain_model(family):
    model = _model(family)
    ids, labels = _batch(WINDOW - 4)
    expected = _gradients(model, input_ids=ids, labels=labels)
    with Unlimiformer(model, window=WINDOW) as u, u.engine.reader.row_prefixes([ids[0, :5]]):  # read into a memory
        _same(_gradients(model, input_ids=ids[:, 5:], labels=labels), expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("at_once", [1 << 24, 1])
def test_many_windows_train_as_full_attention_over_their_states(family, at_once, monkeypatch):
    monkeypatch.setattr(recomputing, "SCORES", at_once)
    model = _model(family)
    ids, labels = _batch(3 * WINDOW + 5)
    with Unlimiformer(model, window=WINDOW, top_k=1000):
        got = _gradients(model, input_ids=ids, labels=labels)
    whole = PlaceholderOutput(last_hidden_state=differentiable_states(model, ids[0], WINDOW))
    mask = torch.ones(1, ids.shape[1], dtype=torch.long)
    _same(got, _gradients(model, encoder_outputs=whole, attention_mask=mask, labels=labels))


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("top_k", [7, 1000])
def test_recomputation_changes_neither_loss_nor_gradients(family, top_k, monkeypatch):
    """Dropout is on: what is computed again must drop the same."""
    model = _model(family, dropout=0.1)
    ids, labels = _batch(3 * WINDOW + 5)
    monkeypatch.setattr(recomputing, "SCORES", 1)
    monkeypatch.setattr(reading, "_KEPT_TOKENS", 1)
    with Unlimiformer(model, window=WINDOW, top_k=top_k):
        torch.manual_seed(0)
        got = _gradients(model, input_ids=ids, labels=labels)
        for module in (recomputing, reading):
            monkeypatch.setattr(module, "checkpoint", lambda function, *args, use_reentrant: function(*args))
        torch.manual_seed(0)
        expected = _gradients(model, input_ids=ids, labels=labels)
    _same(got, expected)


def test_only_what_was_retrieved_is_trained():
    """A state that no head retrieved has no gradient; with all tokens in reach every state has one."""
    model = _model("bart")
    ids, labels = _batch(3 * WINDOW)
    shares = []
    for top_k in (2, 1000):
        with Unlimiformer(model, window=WINDOW, top_k=top_k) as u:
            kept = []
            original = u.engine.reader.read_sources

            def read(*args, original=original, kept=kept, **kwargs):
                memories = original(*args, **kwargs)
                memories[0].store.states.retain_grad()
                kept.append(memories[0])
                return memories

            u.engine.reader.read_sources = read
            _gradients(model, input_ids=ids, labels=labels)
            shares.append(float((kept[0].store.states.grad.abs().sum(1) > 0).float().mean()))
    assert shares[0] < 0.9 and shares[1] == 1.0


def test_equal_rows_are_read_once_and_train_as_if_read_apart():
    """Four questions of two documents: two memories, and the gradients of four."""
    model = _model("t5")
    (first, labels), (second, _) = _batch(2 * WINDOW + 3), _batch(2 * WINDOW + 1)
    second = torch.nn.functional.pad(second, (0, 2))
    mask = torch.ones_like(first), torch.nn.functional.pad(torch.ones(1, 2 * WINDOW + 1, dtype=torch.long), (0, 2))
    order = (0, 1, 0, 0)
    ids, seen = (torch.cat([pair[place] for place in order]) for pair in ((first, second), mask))
    asked = torch.cat([labels + shift for shift in range(4)])
    with Unlimiformer(model, window=WINDOW, top_k=7) as u:
        read = []
        original = u.engine.reader.read_sources
        u.engine.reader.read_sources = lambda sources, *args: read.append(len(sources)) or original(sources, *args)
        got = _gradients(model, input_ids=ids, attention_mask=seen, labels=asked)
        assert read == [2]
        apart = [
            _gradients(model, input_ids=ids[i : i + 1], attention_mask=seen[i : i + 1], labels=asked[i : i + 1])
            for i in range(4)
        ]
    names = apart[0][1]
    mean = {name: sum(part[1][name] for part in apart) / 4 for name in names}
    _same(got, (sum(part[0] for part in apart) / 4, mean))
