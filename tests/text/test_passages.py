"""Passages of a document."""

from __future__ import annotations

import pytest
import torch

from unlimiformer.text.passages import PassageSplitter


class WordTokenizer:
    """Every token is one of these words."""

    texts = ("a", " b.", "\n", " c?", ",\n\n", " 3.5", ' d."')

    def decode(self, ids):
        return self.texts[ids[0]]

    def batch_decode(self, rows):
        return ["".join(self.texts[token] for token in row) for row in rows]


def test_sentences_end_at_full_stops_and_lines():
    splitter = PassageSplitter(WordTokenizer())
    assert [splitter.ends_sentence(token) for token in range(7)] == [False, True, True, True, True, False, True]
    assert not PassageSplitter(None).ends_sentence(2)


def test_a_passage_ends_with_the_first_sentence_that_makes_it_long_enough():
    ids = torch.tensor([0, 0, 1, 0, 0, 0, 3, 0, 1, 0])
    splitter = PassageSplitter(WordTokenizer(), 4)
    spans = splitter.split(ids)
    assert spans == [(0, 7), (7, 10)]
    assert splitter.texts(ids, spans) == ["aa b.aaa c?", "a b.a"]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 65, 130, 1000])
@pytest.mark.parametrize("tokenizer", [None, WordTokenizer()])
def test_passages_are_the_whole_document_and_not_too_long(length, tokenizer):
    ids = torch.where(torch.rand(length, generator=torch.Generator().manual_seed(length)) < 0.03, 1, 0)
    spans = PassageSplitter(tokenizer, 8).split(ids)
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == length
    assert all(0 < stop - start <= 16 for start, stop in spans)
    assert all(stop - start >= 8 for start, stop in spans[:-1])
