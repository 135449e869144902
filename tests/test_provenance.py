"""Provenance adds up the attention that was paid, and names passages of the text."""

from __future__ import annotations

import pytest
import torch
from tiny import WINDOW, make

from unlimiformer import Unlimiformer, UnlimiformerError
from unlimiformer.memory import Memory
from unlimiformer.provenance import Provenance

SETTINGS = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "num_beams": 1}


def test_weights_are_the_attention_by_hand(tokenizer, book):
    """With everything retrieved, the sums equal the unwrapped model's own cross-attentions over the same states."""
    from unlimiformer.install import PlaceholderOutput

    model = make("bart")
    model.set_attn_implementation("eager")
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=10**6) as u:
        out = u.generate(book, provenance=True, **SETTINGS)
        states = out.memory.store.states[None]
    with torch.no_grad():
        plain = model(
            encoder_outputs=PlaceholderOutput(last_hidden_state=states),
            attention_mask=torch.ones(states.shape[:2], dtype=torch.long),
            decoder_input_ids=out.sequences[:, :-1],
            output_attentions=True,
        )
    expected = torch.stack(plain.cross_attentions).sum(dim=(0, 1, 2, 3))  # layers, rows, heads, targets
    assert torch.allclose(out.provenance.weights, expected / expected.sum(), atol=1e-6)


def test_listening_changes_nothing(tokenizer, book):
    model = make("t5")
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9) as u:
        heard, unheard = (u.generate(book, provenance=flag, **SETTINGS) for flag in (True, False))
    assert torch.equal(heard.sequences, unheard.sequences)
    assert unheard.provenance is None
    assert torch.isclose(heard.provenance.weights.sum(), torch.tensor(1.0))


def test_heads_that_do_not_retrieve_are_not_heard(tokenizer, book):
    """One head alone and that head among all: what is heard of it is the same."""
    model = make("bart")
    heard = {}
    for heads in ((1,), (2,), (1, 2)):
        with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, layers=(0,), heads=heads) as u:
            settings = {**SETTINGS, "max_new_tokens": 1, "min_new_tokens": 1}
            heard[heads] = u.generate(book, provenance=True, **settings).provenance.weights
    assert torch.allclose(heard[1, 2], (heard[1,] + heard[2,]) / 2, atol=1e-5)
    assert not torch.allclose(heard[1,], heard[2,], atol=1e-3)


def test_each_input_of_a_batch_has_its_own(tokenizer, book):
    model = make("t5")
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9) as u:
        together = u.generate([book, book[:300]], provenance=True, **SETTINGS)
        alone = [u.generate(text, provenance=True, **SETTINGS) for text in (book, book[:300])]
    for a, b in zip(together, alone, strict=True):
        assert torch.allclose(a.provenance.weights, b.provenance.weights, atol=1e-5)


def _memory(tokens: int, offsets: bool = True) -> Memory:
    from unlimiformer.datastore import ExactStore

    places = torch.stack((torch.arange(tokens) * 5, torch.arange(tokens) * 5 + 4), dim=1)
    places[0] = 0  # a special token
    return Memory(ExactStore(torch.zeros(tokens, 8)), torch.zeros(tokens), None, 1, offsets=places if offsets else None)


def test_passages_are_the_heaviest_stretches():
    weights = torch.zeros(100)
    weights[0], weights[30], weights[33], weights[80] = 0.5, 0.2, 0.1, 0.2
    found = Provenance(weights, _memory(100), weights > 0).passages(count=5, tokens=10)
    assert len(found) == 2
    assert found[0].start <= 30 * 5 and found[0].end >= 33 * 5 + 4
    assert found[0].weight == pytest.approx(0.3)
    assert found[1].start <= 80 * 5 <= found[1].end
    with pytest.raises(UnlimiformerError, match="knows no text"):
        Provenance(weights, _memory(100, offsets=False), weights > 0).passages()


def test_beams_are_refused_for_now(tokenizer, book):
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW) as u:
        with pytest.raises(UnlimiformerError, match="num_beams=3; it is known for 1 only"):
            u.generate(book, provenance=True, num_beams=3)
        assert u.installation.listener is None
