"""Descriptions that are composed of sentences about each part of the passages."""

from __future__ import annotations

import pytest
import torch
from causal_helpers import RecordingStreamer
from tiny_causal_models import tiny_decoder

from unlimiformer import Unlimiformer
from unlimiformer.engines.answer_end import loop_start
from unlimiformer.engines.causal import composed
from unlimiformer.engines.causal.composed import ComposedAnswer, split_tokens

QUESTION = "Describe the character of Anna."


def test_parts_are_equal_and_end_with_sentences(monkeypatch):
    monkeypatch.setattr(composed, "PART_TOKENS", 20)
    ids = torch.arange(100)
    tokens = torch.cat((torch.arange(3, 35), torch.arange(40, 61)))
    parts = split_tokens(tokens, lambda token: token % 4 == 3, ids)
    assert torch.cat(parts).tolist() == tokens.tolist()
    assert [part.shape[0] for part in parts] == [21, 15, 17]
    assert all(int(part[-1]) % 4 == 3 for part in parts[:-1])


def test_parts_without_sentences_are_cut(monkeypatch):
    monkeypatch.setattr(composed, "PART_TOKENS", 20)
    parts = split_tokens(torch.arange(60), lambda token: False, torch.arange(60))
    assert [part.shape[0] for part in parts] == [25, 20, 15]


def test_all_parts_have_their_say():
    answer = ComposedAnswer.compose(
        QUESTION,
        ["There Anna saw Boris.", "Later Anna fled to Kiev."],
        ["Anna is brave and saw Boris. She is young as well. She is rich.", "Anna fled at once to Kiev."],
    )
    assert answer.text == "Anna is brave and saw Boris. She is young as well. Anna fled at once to Kiev."
    assert answer.parts == [0, 0, 1]


def test_names_that_a_part_does_not_have_are_left_out():
    answer = ComposedAnswer.compose(
        QUESTION,
        ["There Anna saw Boris.", "Later Anna fled."],
        ["So Anna met Napoleon there.", "She fled in the night."],
    )
    assert answer.text == "She fled in the night."


def test_a_pronoun_needs_the_sentence_before_it():
    answer = ComposedAnswer.compose(QUESTION, ["Anna wept."], ["So Boris came there. He is a very kind man."])
    assert answer.text == "So Boris came there. He is a very kind man."  # nothing else is left
    answer = ComposedAnswer.compose(
        QUESTION, ["Anna wept.", "Anna"], ["So Boris came there. He is a very kind man.", "The girl Anna wept much."]
    )
    assert answer.text == "The girl Anna wept much."


def test_an_answer_that_is_full_gets_no_more():
    answers = ["She is brave and young.", "She fled in the night.", "She wept a lot."]
    answer = ComposedAnswer.compose(QUESTION, ["Anna"] * 3, answers, lambda text: len(text.split()) <= 9)
    assert answer.text == "She is brave and young. She wept a lot."


def test_words_are_not_written_three_times():
    answers = [
        f"The relationship between Anna and Boris {end}." for end in ("is tense", "grows warm later", "ends in Kiev")
    ]
    answer = ComposedAnswer.compose(QUESTION, ["Anna and Boris in Kiev"] * 3, answers)
    assert loop_start(answer.text) is None
    assert len(answer.sentences) == 2


def test_nothing_is_said_twice_and_the_question_is_not_repeated():
    answers = ["Describe the character of Anna now.", "She is kind to all of them.", "She is kind to all of them too."]
    answer = ComposedAnswer.compose(QUESTION, ["Anna"] * 3, answers)
    assert answer.text == "She is kind to all of them."


def test_without_a_good_sentence_the_first_answer_is_taken():
    assert ComposedAnswer.compose(QUESTION, ["Anna"], [" yes "]).text == "yes"


@pytest.fixture
def wrapped(tokenizer):
    return Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32)


def _record_parts(monkeypatch):
    """The texts of every composed answer from now on."""
    calls, compose = [], ComposedAnswer.compose

    def record(question, texts, *others):
        calls.append(texts)
        return compose(question, texts, *others)

    monkeypatch.setattr(ComposedAnswer, "compose", record)
    return calls


def test_a_description_is_composed_and_a_fact_is_not(wrapped, book, monkeypatch):
    memory = wrapped.index(book)
    monkeypatch.setattr(composed, "PART_TOKENS", 16)
    calls = _record_parts(monkeypatch)
    wrapped.generate(memory, prompt="Who is w3?", max_new_tokens=6)
    wrapped.generate(memory, prompt="w3 w4", max_new_tokens=6)
    wrapped.generate("w1 w2 w3", prompt="Describe w3", max_new_tokens=6)  # one window, read as the plain model reads it
    assert calls == []
    output = wrapped.generate(memory, prompt="Describe w3", max_new_tokens=6, provenance=True)
    assert [len(texts) for texts in calls] == [2]
    assert output.answer
    assert output.new_tokens <= 6
    assert output.selected is not None
    assert output.provenance.spans("sentence")[0].text


def test_the_parts_are_what_was_selected(wrapped, book, monkeypatch):
    memory = wrapped.index(book)
    calls = _record_parts(monkeypatch)
    output = wrapped.generate(memory, prompt="Describe w3", max_new_tokens=6)
    tokens = memory.text_ids[output.selected - memory.prefix_tokens]
    assert " ".join(calls[0]).split() == wrapped.tokenizer.decode(tokens).split()


def test_a_batch_of_descriptions_and_facts(wrapped, book):
    memory = wrapped.index(book)
    prompts = ["Describe w3", "Who is w3?"]
    together = wrapped.generate([memory, memory], prompt=prompts, max_new_tokens=6)
    alone = [wrapped.generate(memory, prompt=prompt, max_new_tokens=6) for prompt in prompts]
    assert [output.answer for output in together] == [output.answer for output in alone]


def test_a_description_is_streamed(wrapped, book):
    streamer = RecordingStreamer()
    output = wrapped.generate(wrapped.index(book), prompt="Describe w3", max_new_tokens=6, streamer=streamer)
    assert streamer.received[-1] is None
    assert torch.stack(streamer.received[1:-1])[:, 0].tolist() == output.token_ids.tolist()
