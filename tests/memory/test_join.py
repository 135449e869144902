"""Several memories as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import make_book
from tiny_causal_models import tiny_decoder

from unlimiformer import Unlimiformer
from unlimiformer.errors import InputError
from unlimiformer.memory.join import document_starts, join_memories
from unlimiformer.text.document_text import DocumentText, Location


@pytest.fixture
def wrapped(tokenizer):
    return Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, top_k=12, block=4)


def test_states_text_and_places_are_those_of_the_parts(wrapped):
    texts = [make_book(100), "w7 w8 w9. " * 30]
    parts = [
        wrapped.index(texts[0]),
        wrapped.index(DocumentText(texts[1], (Location(0, "p. 1"), Location(50, "p. 2")))),
    ]
    joined = join_memories(parts, ["a.txt", "b.pdf"])
    prefix = parts[0].prefix_tokens
    assert torch.equal(joined.store.all_states()[len(parts[0]) :], parts[1].store.all_states()[prefix:])
    assert len(joined) == len(parts[0]) + len(parts[1]) - prefix and joined.key not in {part.key for part in parts}
    start = document_starts(texts)[1]
    assert joined.text[start:] == texts[1] and joined.windows == parts[0].windows + parts[1].windows
    assert joined.citations.at(5) == "a.txt" and joined.citations.at(start + 60) == "b.pdf, p. 2"
    row = len(parts[0]) + 20
    first, last = joined.offsets[row].tolist()
    assert joined.text[first:last] == wrapped.tokenizer.decode(joined.token_ids[row : row + 1]).strip()


def test_a_question_finds_its_answer_in_either_document(wrapped):
    parts = [wrapped.index(make_book(120)), wrapped.index("w900 w901 w902. " * 40)]
    joined = join_memories(parts, ["one", "two"])
    output = wrapped.generate(joined, prompt="w900 w901?", max_new_tokens=4, provenance=True)
    assert joined.citations.at(output.provenance.passages(1)[0].start) in ("one", "two")
    assert join_memories(parts[:1], ["one"]) is parts[0]


def test_memories_of_other_settings_are_refused(wrapped, tokenizer):
    memory = wrapped.index(make_book(100))
    other = replace(memory, spec=replace(memory.spec, window=32))
    with pytest.raises(InputError, match="'two' was encoded in another way than 'one'"):
        join_memories([memory, other], ["one", "two"])
    with pytest.raises(InputError, match="1 memories and 0 names"):
        join_memories([memory], [])
