"""Gradients of long inputs, compared with full attention over the same encoder states."""

from __future__ import annotations

import pytest
import torch
from reference import differentiable_states, relative
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq import attention_grad
from unlimiformer.engines.seq2seq.placeholder import PlaceholderOutput
from unlimiformer.memory import indexer

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
    """Random input ids (1, tokens) and labels (1, 9)."""
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(3, 90, (1, tokens), generator=generator), torch.randint(3, 90, (1, 9), generator=generator)


def _gradients(model, **inputs):
    """Return the loss, and the gradients by the names of their parameters."""
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _assert_same(actual, expected):
    (loss, gradients), (expected_loss, expected_gradients) = actual, expected
    assert relative(loss, expected_loss) < TOLERANCE
    assert set(gradients) == set(expected_gradients)
    largest = max(float(gradient.abs().max()) for gradient in expected_gradients.values())
    for name, gradient in expected_gradients.items():
        assert float((gradients[name] - gradient).abs().max()) < TOLERANCE * largest, name


@pytest.mark.parametrize("family", FAMILIES)
def test_input_within_the_window_has_the_gradients_of_the_plain_model(family):
    model = _model(family)
    ids, labels = _batch(WINDOW - 4)
    expected = _gradients(model, input_ids=ids, labels=labels)
    with Unlimiformer(model, window=WINDOW) as u, u.engine.context(prefixes=[ids[0, :5]]):  # makes a memory
        _assert_same(_gradients(model, input_ids=ids[:, 5:], labels=labels), expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scores_at_once", [1 << 24, 1])
def test_many_windows_have_the_gradients_of_full_attention(family, scores_at_once, monkeypatch):
    monkeypatch.setattr(attention_grad, "SCORES", scores_at_once)
    model = _model(family)
    ids, labels = _batch(3 * WINDOW + 5)
    with Unlimiformer(model, window=WINDOW, top_k=1000):
        actual = _gradients(model, input_ids=ids, labels=labels)
    states = PlaceholderOutput(last_hidden_state=differentiable_states(model, ids[0], WINDOW))
    mask = torch.ones(1, ids.shape[1], dtype=torch.long)
    _assert_same(actual, _gradients(model, encoder_outputs=states, attention_mask=mask, labels=labels))


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("top_k", [7, 1000])
def test_checkpointing_changes_neither_loss_nor_gradients(family, top_k, monkeypatch):
    """With dropout: the second computation must drop the same values."""
    model = _model(family, dropout=0.1)
    ids, labels = _batch(3 * WINDOW + 5)
    monkeypatch.setattr(attention_grad, "SCORES", 1)
    monkeypatch.setattr(indexer, "_CHECKPOINT_ABOVE", 1)
    with Unlimiformer(model, window=WINDOW, top_k=top_k):
        torch.manual_seed(0)
        actual = _gradients(model, input_ids=ids, labels=labels)
        for module in (attention_grad, indexer):
            monkeypatch.setattr(module, "checkpoint", lambda function, *args, use_reentrant: function(*args))
        torch.manual_seed(0)
        expected = _gradients(model, input_ids=ids, labels=labels)
    _assert_same(actual, expected)


def test_only_retrieved_states_have_gradients():
    """A state that no head retrieves has no gradient; if every token is retrieved, every state has one."""
    model = _model("bart")
    ids, labels = _batch(3 * WINDOW)
    shares = []
    for top_k in (2, 1000):
        with Unlimiformer(model, window=WINDOW, top_k=top_k) as u:
            stores = []
            original = u.engine.indexer.index_inputs

            def read(*args, original=original, stores=stores, **kwargs):
                memories = original(*args, **kwargs)
                memories[0].store.states.retain_grad()
                stores.append(memories[0].store)
                return memories

            u.engine.indexer.index_inputs = read
            _gradients(model, input_ids=ids, labels=labels)
            shares.append(float((stores[0].states.grad.abs().sum(1) > 0).float().mean()))
    assert shares[0] < 0.9 and shares[1] == 1.0


def test_equal_rows_are_encoded_once_and_have_the_same_gradients():
    """Four questions about two documents: two memories, and the gradients of four separate examples."""
    model = _model("t5")
    (first, labels), (second, _) = _batch(2 * WINDOW + 3), _batch(2 * WINDOW + 1)
    second = torch.nn.functional.pad(second, (0, 2))
    masks = torch.ones_like(first), torch.nn.functional.pad(torch.ones(1, 2 * WINDOW + 1, dtype=torch.long), (0, 2))
    order = (0, 1, 0, 0)
    ids, mask = (torch.cat([pair[index] for index in order]) for pair in ((first, second), masks))
    row_labels = torch.cat([labels + shift for shift in range(4)])
    with Unlimiformer(model, window=WINDOW, top_k=7) as u:
        source_counts = []
        original = u.engine.indexer.index_inputs

        def read(sources, *args):
            source_counts.append(len(sources))
            return original(sources, *args)

        u.engine.indexer.index_inputs = read
        actual = _gradients(model, input_ids=ids, attention_mask=mask, labels=row_labels)
        assert source_counts == [2]
        separate = [
            _gradients(model, input_ids=ids[i : i + 1], attention_mask=mask[i : i + 1], labels=row_labels[i : i + 1])
            for i in range(4)
        ]
    mean_loss = sum(loss for loss, _ in separate) / 4
    mean_gradients = {name: sum(gradients[name] for _, gradients in separate) / 4 for name in separate[0][1]}
    _assert_same(actual, (mean_loss, mean_gradients))
