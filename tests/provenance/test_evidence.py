"""Which passages a sentence stands on."""

from __future__ import annotations

import pytest
from summary_helpers import make_story
from tiny_causal_models import tiny_decoder

from unlimiformer import Unlimiformer, UnlimiformerError
from unlimiformer.provenance import Passage, Provenance, Span
from unlimiformer.provenance.evidence import EvidenceSearch


def test_the_best_passage_shares_the_words_of_the_sentence():
    story = make_story(4)
    best = EvidenceSearch(story).find("Clara went to a market.", [(0, len(story))])[0]
    assert "Clara" in story[best.start : best.end]


def test_passages_are_searched_in_a_part_of_the_document():
    story = make_story(4)
    within = (story.index("CHAPTER 2"), story.index("CHAPTER 3"))
    passages = EvidenceSearch(story).find("Then Clara or Boris was in the meadow.", [within])
    assert passages
    assert all(passage.end > within[0] and passage.start < within[1] for passage in passages)


def test_weights_are_shares():
    story = make_story(4)
    passages = EvidenceSearch(story).find("Clara went to market.", [(0, len(story))], count=3)
    assert len(passages) == 3
    assert abs(sum(passage.weight for passage in passages) - 1) < 1e-6
    assert [passage.weight for passage in passages] == sorted((p.weight for p in passages), reverse=True)


def test_nothing_is_found_for_foreign_words():
    story = make_story(2)
    assert EvidenceSearch(story).find("Quarks annihilate.", [(0, len(story))]) == ()


def test_provenance_of_known_passages(tokenizer, book):
    wrapped = Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32)
    memory = wrapped.index(book)
    first, second = Passage(0, 20, 0.75), Passage(100, 120, 0.25)
    spans = [Span("One.", 0, 4, [first, second]), Span("Two.", 5, 9, [second])]
    provenance = Provenance.from_sentences(memory, spans)
    assert float(provenance.weights.sum()) == pytest.approx(1)
    inside = [
        n
        for n, (start, end) in enumerate(memory.offsets.tolist())
        if end > 0 and (start < 20 or (end > 100 and start < 120))
    ]
    assert provenance.weights.nonzero()[:, 0].tolist() == inside
    assert provenance.spans("sentence", 1) == [Span("One.", 0, 4, [first]), Span("Two.", 5, 9, [second])]
    content = provenance.to_dict()
    assert content["answer"].split() == ["One.", "Two."]
    assert content["sentences"][0]["passages"][0]["text"] == book[0:20]
    assert [token["text"] for token in content["tokens"]] == ["One. ", "Two. "]
    with pytest.raises(UnlimiformerError, match="no text"):
        Provenance.from_sentences(wrapped.index(tokenizer(book)["input_ids"]), spans)
