"""The plain decoder-only model as a baseline: over the first window, and over all that its context holds."""

from __future__ import annotations

import pytest
from conftest import make_book, make_tokenizer
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW as TINY_WINDOW
from tiny_models import make

from unlimiformer import UnlimiformerConfig
from unlimiformer.engines.causal import engine as causal_engine
from unlimiformer.evaluation.methods import Answerer, Item
from unlimiformer.qa import QuestionFormat

GENERATION = {"max_new_tokens": 5, "do_sample": False, "num_beams": 1}
WINDOW, WORDS = 24, 60


@pytest.mark.parametrize(("method", "seen"), [("truncate", WINDOW), ("full", WORDS)])
def test_what_the_plain_model_sees_is_read_once_for_all_questions(method, seen, monkeypatch):
    read, document_class = [], causal_engine.TruncatedDocument

    def record(engine, text, prefix, room):
        read.append(text)
        return document_class(engine, text, prefix, room)

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


@pytest.mark.parametrize("method", ["sled", "memorizing"])
def test_a_model_that_rereads_gets_questions_before_every_window_as_a_baseline(method):
    """It was trained with the question before what it reads, and these methods read nothing again."""
    tokenizer, items = make_tokenizer(), [Item("a", make_book(200), "w3 w4?", ("w1",))]
    answers = []
    for selection, place in (("reread", "decoder"), (None, "window")):
        config = UnlimiformerConfig(window=TINY_WINDOW, selection=selection)
        answerer = Answerer.wrap(make("t5"), tokenizer, config, QuestionFormat(place), dict(GENERATION), method)
        with answerer.wrapped as wrapped:
            assert wrapped.engine.config.selection in (None, "top-k")
            answers.append([reply.text for reply in answerer.answers(items)])
    assert answers[0] == answers[1]
