"""Questions about one document, for every kind of model."""

from __future__ import annotations

import json

import pytest
from causal_helpers import RecordingStreamer
from summary_helpers import make_story
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.errors import UnlimiformerError
from unlimiformer.qa import DocumentQA, QuestionFormat, answer_batch

GREEDY = {"max_new_tokens": 5, "do_sample": False}


def _record_prefixes(u, monkeypatch):
    """The prefix of every call of `index` from now on."""
    prefixes, index = [], u.index

    def record(*args, **kwargs):
        prefixes.append(kwargs["prefix"])
        return index(*args, **kwargs)

    monkeypatch.setattr(u, "index", record)
    return prefixes


def test_questions_before_every_window_index_the_document_each_time(tokenizer, book, monkeypatch):
    u = Unlimiformer(make("t5"), tokenizer, window=WINDOW)
    prefixes = _record_prefixes(u, monkeypatch)
    qa = DocumentQA(u, book, QuestionFormat(form="w9 {question} w8"))
    answers = [qa.ask(question, **GREEDY).text for question in ("w1", "w2")]
    assert prefixes == ["w9 w1 w8", "w9 w2 w8"]
    assert answers[0] == u.generate(book, prefix="w9 w1 w8", **GREEDY).text
    truncated = tokenizer("w9 w1 w8" + book, truncation=True, max_length=WINDOW, return_tensors="pt")["input_ids"]
    sequences = u.model.generate(input_ids=truncated, **GREEDY)
    assert qa.ask_truncated("w1", **GREEDY) == tokenizer.decode(sequences[0], skip_special_tokens=True)


def test_a_question_in_the_decoder_is_not_part_of_the_answer(tokenizer, book, monkeypatch):
    u = Unlimiformer(make("t5"), tokenizer, window=WINDOW)
    prefixes = _record_prefixes(u, monkeypatch)
    qa = DocumentQA(u, book, QuestionFormat("decoder", "{question} w7"))
    answer = qa.ask("w1 w2", **GREEDY)
    qa.ask("w3", **GREEDY)
    assert prefixes == [None]
    text = u.generate(book, prompt="w1 w2 w7", **GREEDY).text
    assert text == f"w1 w2 w7 {answer.text}"
    assert not qa.ask_truncated("w1 w2", **GREEDY).startswith("w1 w2 w7")


def test_a_decoder_only_model_indexes_once(tokenizer, book, monkeypatch):
    u = Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32)
    prefixes = _record_prefixes(u, monkeypatch)
    qa = DocumentQA(u, book)
    answer = qa.ask("w1", **GREEDY)
    qa.ask("w2", **GREEDY)
    assert prefixes == [None]
    assert answer.text == u.generate(book, prompt="w1", **GREEDY).text
    assert qa.ask_truncated("w1", **GREEDY)


def test_documents_may_be_paths_pieces_and_memories(tokenizer, book, tmp_path):
    u = Unlimiformer(make("t5"), tokenizer, window=WINDOW)
    path = tmp_path / "book.txt"
    path.write_text(book)
    question_format = QuestionFormat(form="{question} w8")
    expected = DocumentQA(u, book, question_format).ask("w1", **GREEDY).text
    for source in (path, iter([book[:100], book[100:]])):
        assert DocumentQA(u, source, question_format).ask("w1", **GREEDY).text == expected
    memory = u.index(book)
    qa = DocumentQA(u, memory, question_format)
    assert f"w1 {qa.ask('w1', **GREEDY).text}" == u.generate(memory, prompt="w1", **GREEDY).text
    assert qa.ask_truncated("w1", **GREEDY)
    with pytest.raises(UnlimiformerError, match="token ids were given"):
        DocumentQA(u, [3, 4, 5])


@pytest.mark.parametrize("form", ["no question", "{answer}", "{", "{}"])
def test_a_form_without_a_question_is_refused(form):
    with pytest.raises(UnlimiformerError, match=r"expected some text with \{question\}"):
        QuestionFormat(form=form)


def test_settings_saved_with_a_model(tmp_path, tokenizer):
    """Settings that a user gives override those next to the weights."""
    assert QuestionFormat.from_folder(tmp_path) is None
    saved = {
        "settings": {"top_k": 5, "window": 16, "layers": [1]},
        "asking": {"place": "decoder", "form": "{question}?"},
    }
    make("t5").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "unlimiformer.json").write_text(json.dumps(saved))
    assert QuestionFormat.from_folder(tmp_path) == QuestionFormat("decoder", "{question}?")
    with Unlimiformer.from_pretrained(tmp_path, window=24) as u:
        assert (u.top_k, u.window, u.config.layers) == (5, 24, (1,))
    for broken, message in (("[]", "cannot be read"), ('{"settings": {"colour": 1}}', "has the setting colour")):
        (tmp_path / "unlimiformer.json").write_text(broken)
        with pytest.raises(UnlimiformerError, match=message):
            Unlimiformer.from_pretrained(tmp_path)


def test_a_decoder_only_model_summarises_section_by_section(scribe):
    story = make_story(4)
    model = scribe()
    qa = DocumentQA(model.wrapped, story)
    streamer = RecordingStreamer()
    expected = model.wrapped.summarize(story, words=200)
    answer = qa.ask("What is the plot of the story?", provenance=True, streamer=streamer)
    assert answer.text == expected.text
    assert streamer.received[-1] is None
    assert len(streamer.received) - 2 == answer.output.token_ids.shape[0]
    quotes = answer.quotes(2)
    assert all(quote["text"] == story[quote["start"] : quote["end"]] for quote in quotes)
    assert len(qa.ask(None, max_new_tokens=30).text.split()) < len(answer.text.split())
    assert answer_batch(model.wrapped, [story], [None], QuestionFormat())[0].text == expected.text
