"""Provenance: passages of the source, spans of the answer, and their JSON."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_models import WINDOW, make

from unlimiformer import Memory, Unlimiformer, UnlimiformerError
from unlimiformer.datastore import ExactStore
from unlimiformer.provenance.provenance import Provenance


def _memory(tokens: int, with_offsets: bool = True) -> Memory:
    """A memory whose tokens have four characters and a space each; the first is a special token."""
    offsets = torch.stack((torch.arange(tokens) * 5, torch.arange(tokens) * 5 + 4), dim=1)
    offsets[0] = 0
    store = ExactStore(torch.zeros(tokens, 8))
    return Memory(store, torch.zeros(tokens), None, 1, offsets=offsets if with_offsets else None)


def test_passages_are_the_heaviest_stretches():
    weights = torch.zeros(100)
    weights[0], weights[30], weights[33], weights[80] = 0.5, 0.2, 0.1, 0.2
    passages = Provenance(_memory(100), weights, weights > 0).passages(count=5, tokens=10)
    assert len(passages) == 2
    assert passages[0].start <= 30 * 5 and passages[0].end >= 33 * 5 + 4
    assert passages[0].weight == pytest.approx(0.3)
    assert passages[1].start <= 80 * 5 <= passages[1].end
    with pytest.raises(UnlimiformerError, match="has no text"):
        Provenance(_memory(100, with_offsets=False), weights, weights > 0).passages()


def test_spans_have_their_text_and_passages(tokenizer, book):
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "num_beams": 1}
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=9) as u:
        out = u.generate(book, prompt="w3", provenance=True, **settings)
    provenance = out.provenance
    spans = provenance.spans("token", count=1, tokens=10)
    assert "".join(span.text for span in spans) == "".join(provenance.tokens)
    for number, span in enumerate(spans):
        assert provenance.tokens[number] == span.text
        weights = provenance.attention([number]).where(out.memory.offsets[:, 1] > 0, 0.0)
        best = max(float(weights[start : start + 10].sum()) for start in range(len(weights) - 9))
        assert span.passages[0].weight == pytest.approx(best, abs=1e-5)
    (sentence,) = provenance.spans("sentence", count=1, tokens=10)
    assert sentence.text == "".join(provenance.tokens)
    with pytest.raises(UnlimiformerError, match="the unit is 'page'; expected one of: token, sentence"):
        provenance.spans("page")


def test_json_and_histogram(tokenizer, book):
    with Unlimiformer(make("bart"), tokenizer, window=WINDOW, top_k=9) as u:
        out = u.generate(book, provenance=True, num_beams=2, max_new_tokens=5, do_sample=False)
    fields = json.loads(out.provenance.to_json())
    assert fields["answer"] == out.text and sum(fields["histogram"]) == pytest.approx(1, abs=1e-4)
    for part in (*fields["tokens"], *fields["sentences"], fields):
        assert all(passage["text"] == book[passage["start"] : passage["end"]] for passage in part["passages"])
    weights = out.provenance.weights
    first_half = out.memory.offsets[:, 0] * 2 <= int(out.memory.offsets[:, 0].max())
    assert out.provenance.histogram(2)[0] == pytest.approx(float(weights[first_half].sum()), abs=1e-6)
