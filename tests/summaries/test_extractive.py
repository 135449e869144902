"""Summaries that consist of sentences of the document."""

from __future__ import annotations

import types

import pytest

from unlimiformer.summaries import SummaryRequest
from unlimiformer.summaries.extractive import Extractive, all_sentences, candidates

STORY = (
    "The miller and his three sons lived beside the river for many years. "
    "He was proud of the great mill and of the sons. "
    "“You will have the mill,” said the miller to the eldest of the sons. "
    "Short words. "
    "The miller and his sons repaired the great wheel of the mill beside the river. "
    "A swarm of purple butterflies crossed an entirely unrelated meadow that afternoon. "
    "The youngest of the sons sold the mill and the wheel beside the river. "
)


def _texts(words: int) -> list[str]:
    return [sentence.text for sentence in candidates(all_sentences(STORY, (0, len(STORY))), words)]


@pytest.fixture
def summarize(tokenizer):
    """Summarises a text in about so many words, without a model."""
    engine = types.SimpleNamespace(tokenizer=tokenizer)
    return lambda text, words: Extractive(engine, None).summarize(SummaryRequest(text, words=words))


def test_what_cannot_stand_alone_is_left_out():
    texts = _texts(20)
    assert len(texts) == 4
    assert not any("“" in text or text.startswith(("He ", "Short")) for text in texts)


def test_pronouns_are_better_than_too_few_words():
    assert any(text.startswith("He was proud") for text in _texts(60))
    assert len(_texts(1000)) == 7, "all sentences, if nothing else is left"


def test_a_summary_has_the_sentences_with_the_words_of_the_others(summarize):
    summary = summarize(STORY, 16)
    assert summary.text and "butterflies" not in summary.text
    assert len(summary.text.split()) <= 1.1 * 16


def test_every_sentence_stands_in_the_document_where_its_passage_says(summarize):
    document = "\n\n".join(STORY.replace("miller", f"miller{number}") for number in range(12))
    summary = summarize(document, 120)
    assert len(summary.sentences) >= 6
    for sentence in summary.sentences:
        (passage,) = sentence.passages
        assert " ".join(document[passage.start : passage.end].split()) == sentence.text


def test_a_text_without_any_sentence_that_can_stand_alone(summarize):
    assert summarize("“Yes,” he said.", 20).text == "“Yes,” he said."
