"""The plain decoder-only model as a baseline: over the first window, and over all that its context holds."""

from __future__ import annotations

import pytest
from conftest import make_book, make_tokenizer
from tiny_causal_models import tiny_decoder

from unlimiformer import UnlimiformerConfig
from unlimiformer.engines.causal import engine as causal_engine
from unlimiformer.evaluation.methods import Answerer, Item
from unlimiformer.qa import QuestionFormat

GENERATION = {"max_new_tokens": 5, "do_sample": False, "num_beams": 1}
WINDOW, WORDS = 24, 60


@pytest.mark.parametrize(("method", "seen"), [("truncate", WINDOW), ("full", WORDS)])
def test_what_the_plain_model_sees_is_read_once_for_all_questions(method, seen, monkeypatch):
    read, document_class = [], causal_engine.TruncatedDocument

    def record(decoder, template, tokenizer, text, prefix, room, prefix_reader):
        read.append(text)
        return document_class(decoder, template, tokenizer, text, prefix, room, prefix_reader)

    monkeypatch.setattr(causal_engine, "TruncatedDocument", record)
    config = UnlimiformerConfig(window=WINDOW, block=8, top_k=8)
    book = make_book(WORDS)
    items = [Item(question, book, question, ("w1",)) for question in ("w3", "w4 w5")]
    model, tokenizer = tiny_decoder("llama"), make_tokenizer()
    answerer = Answerer.wrap(model, tokenizer, config, QuestionFormat(), dict(GENERATION), method)
    with answerer.wrapped as wrapped:
        answers = [answerer.answers([item])[0].text for item in items]
        assert read == [" ".join(book.split()[:seen])]
        expected = [wrapped.engine.truncated_generate(read, [item.question], dict(GENERATION))[0] for item in items]
        answerer.answers([Item("c", "w1 w2 w3", "w3", ("w1",))])
    assert answers == expected and len(read) == 2, "another document is read anew"


def test_the_context_limits_what_the_plain_model_reads():
    config = UnlimiformerConfig(window=WINDOW, block=8, top_k=8)
    answerer = Answerer.wrap(
        tiny_decoder("llama"), make_tokenizer(), config, QuestionFormat(), dict(GENERATION), "full"
    )
    book = make_book(600)
    with answerer.wrapped as wrapped:
        room = wrapped.engine.truncated_room(dict(GENERATION))
        beginning = " ".join(book.split()[:room])
        answers = [answerer.answers([Item("a", text, "w3", ("w1",))]) for text in (book, beginning)]
    assert answers[0] == answers[1]
