"""Conversations about one text, for every kind of model."""

from __future__ import annotations

import json

import pytest
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.errors import UnlimiformerError
from unlimiformer.qa import DocumentQA, QuestionFormat

GREEDY = {"max_new_tokens": 5, "do_sample": False}


def _count_readings(u, monkeypatch):
    readings, index = [], u.index
    monkeypatch.setattr(
        u, "index", lambda *args, **kwargs: (readings.append(kwargs["prefix"]), index(*args, **kwargs))[1]
    )
    return readings


def test_a_question_before_every_window_has_the_text_read_for_it(tokenizer, book, monkeypatch):
    u = Unlimiformer(make("t5"), tokenizer, window=WINDOW)
    readings = _count_readings(u, monkeypatch)
    talk = DocumentQA(u, book, QuestionFormat(form="w9 {question} w8"))
    answers = [talk.ask(question, **GREEDY).text for question in ("w1", "w2")]
    assert readings == ["w9 w1 w8", "w9 w2 w8"]
    assert answers[0] == u.generate(book, prefix="w9 w1 w8", **GREEDY).text
    short = tokenizer("w9 w1 w8" + book, truncation=True, max_length=WINDOW, return_tensors="pt")["input_ids"]
    made = u.model.generate(input_ids=short, **GREEDY)
    assert talk.truncated("w1", **GREEDY) == tokenizer.decode(made[0], skip_special_tokens=True)


def test_a_question_in_the_decoder_is_not_part_of_the_answer(tokenizer, book, monkeypatch):
    u = Unlimiformer(make("t5"), tokenizer, window=WINDOW)
    readings = _count_readings(u, monkeypatch)
    talk = DocumentQA(u, book, QuestionFormat("decoder", "{question} w7"))
    reply = talk.ask("w1 w2", **GREEDY)
    talk.ask("w3", **GREEDY)
    assert readings == [None]
    whole = u.generate(book, prompt="w1 w2 w7", **GREEDY).text
    assert whole == f"w1 w2 w7 {reply.text}"
    assert not talk.truncated("w1 w2", **GREEDY).startswith("w1 w2 w7")


def test_a_decoder_only_model_reads_once(tokenizer, book, monkeypatch):
    u = Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32)
    readings = _count_readings(u, monkeypatch)
    talk = DocumentQA(u, book)
    reply = talk.ask("w1", **GREEDY)
    talk.ask("w2", **GREEDY)
    assert readings == [None]
    assert reply.text == u.generate(book, prompt="w1", **GREEDY).text
    assert talk.truncated("w1", **GREEDY)


def test_texts_come_as_paths_pieces_and_memories(tokenizer, book, tmp_path):
    u = Unlimiformer(make("t5"), tokenizer, window=WINDOW)
    path = tmp_path / "book.txt"
    path.write_text(book)
    asking = QuestionFormat(form="{question} w8")
    expected = DocumentQA(u, book, asking).ask("w1", **GREEDY).text
    for source in (path, iter([book[:100], book[100:]])):
        assert DocumentQA(u, source, asking).ask("w1", **GREEDY).text == expected
    memory = u.index(book)
    talk = DocumentQA(u, memory, asking)
    assert f"w1 {talk.ask('w1', **GREEDY).text}" == u.generate(memory, prompt="w1", **GREEDY).text
    assert talk.truncated("w1", **GREEDY)
    with pytest.raises(UnlimiformerError, match="token ids were given"):
        DocumentQA(u, [3, 4, 5])


@pytest.mark.parametrize("form", ["no question", "{answer}", "{", "{}"])
def test_a_form_without_a_question_is_refused(form):
    with pytest.raises(UnlimiformerError, match=r"expected some text with \{question\}"):
        QuestionFormat(form=form)


def test_a_model_says_how_it_is_used(tmp_path, tokenizer):
    """Settings that a user gives win over those beside the weights."""
    assert QuestionFormat.of(tmp_path) is None
    told = {
        "settings": {"top_k": 5, "window": 16, "layers": [1]},
        "asking": {"place": "decoder", "form": "{question}?"},
    }
    make("t5").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "unlimiformer.json").write_text(json.dumps(told))
    assert QuestionFormat.of(tmp_path) == QuestionFormat("decoder", "{question}?")
    with Unlimiformer.from_pretrained(tmp_path, window=24) as u:
        assert (u.top_k, u.window, u.config.layers) == (5, 24, (1,))
    for broken, message in (("[]", "cannot be read"), ('{"settings": {"colour": 1}}', "has the setting colour")):
        (tmp_path / "unlimiformer.json").write_text(broken)
        with pytest.raises(UnlimiformerError, match=message):
            Unlimiformer.from_pretrained(tmp_path)
