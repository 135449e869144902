"""The paper's way to summarise: one call of `generate` over the whole document."""

from __future__ import annotations

import pytest
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.qa import DocumentQA, QuestionFormat


@pytest.fixture
def wrapped(tokenizer):
    return Unlimiformer(make("t5"), tokenizer, window=WINDOW)


def test_it_is_what_generate_writes(wrapped, book):
    summary = wrapped.summarize(book, words=6)
    assert summary.method == "direct"
    assert summary.text == DocumentQA(wrapped, book).ask(None, max_new_tokens=8).text
    assert summary == wrapped.summarize(wrapped.index(book), words=6)


def test_passages_are_those_that_were_attended_to(wrapped, book):
    (sentence,) = wrapped.summarize(book, words=6).sentences
    output = DocumentQA(wrapped, book).ask(None, provenance=True, max_new_tokens=8).output
    (span,) = output.provenance.spans("sentence", 2)
    assert list(sentence.passages) == span.passages


@pytest.mark.parametrize("place", ["window", "first"])
def test_positions_are_those_of_the_document(wrapped, book, place):
    question_format = QuestionFormat(place, "{question} w8 ", summary_prompt="w9")
    summary = wrapped.summarize(book, words=6, question_format=question_format)
    answer = DocumentQA(wrapped, book, question_format).ask(None, provenance=True, max_new_tokens=8)
    assert summary.text == answer.text
    shift = 0 if place == "window" else len("w9 w8 ")
    expected = [max(0, p.start - shift) for p in answer.output.provenance.spans("sentence", 2)[0].passages]
    assert [passage.start for passage in summary.sentences[0].passages] == expected


def test_a_given_memory_is_asked_in_the_decoder(wrapped, book):
    question_format = QuestionFormat("first", "{question} w8 ", summary_prompt="w9")
    memory = wrapped.index(book)
    summary = wrapped.summarize(memory, words=6, question_format=question_format)
    answer = DocumentQA(wrapped, memory, question_format).ask(None, provenance=True, max_new_tokens=8)
    assert summary.text == answer.text
    expected = answer.output.provenance.spans("sentence", 2)[0].passages
    assert list(summary.sentences[0].passages) == expected


def test_by_chapter(wrapped):
    text = "\n\n".join(f"CHAPTER {n}\n\n" + " ".join(f"w{(n * 7 + i) % 90}" for i in range(400)) for n in (1, 2))
    summary = wrapped.summarize(text, words=5, by_chapter=True)
    assert [chapter.title for chapter in summary.chapters] == ["CHAPTER 1", "CHAPTER 2"]
    second = text.index("CHAPTER 2")
    assert summary.chapters[1].text == DocumentQA(wrapped, text[second:]).ask(None, max_new_tokens=6).text
    assert all(passage.start >= second for passage in summary.chapters[1].sentences[0].passages)
