"""Map-reduce as a baseline: how documents and answers are split, and that the plain model is asked about each part."""

from __future__ import annotations

import pytest
from conftest import make_tokenizer
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import UnlimiformerConfig
from unlimiformer.errors import InputError
from unlimiformer.evaluation import methods
from unlimiformer.evaluation.map_reduce import MapReduce
from unlimiformer.evaluation.methods import Answerer, Item
from unlimiformer.qa import QuestionFormat

PART = 20
GENERATION = {"max_new_tokens": 4, "do_sample": False, "num_beams": 1}


class _Recorder:
    """Answers every text by a function of it, and records the texts."""

    def __init__(self, answer):
        self.answer, self.texts = answer, []

    def __call__(self, text):
        self.texts.append(text)
        return self.answer(text)


def _words(first, count):
    """One sentence, whose full stop is a token too."""
    return " ".join(f"w{first + number}" for number in range(count - 1)) + "."


def _ask(document, answer, part=PART):
    ask = _Recorder(answer)
    return MapReduce(ask, make_tokenizer(), part).answer(document), ask.texts


def test_parts_are_whole_sentences_and_hold_the_whole_document():
    sentences = [_words(1, 8), _words(11, 9), _words(21, 7), _words(31, 12), _words(51, 8)]
    answer, texts = _ask(" ".join(sentences), lambda text: text.split()[0])
    first, second, third = " ".join(sentences[:2]), " ".join(sentences[2:4]), sentences[4]
    assert texts == [first, second, third, "w1.\nw21.\nw51."]
    assert answer == "w1."


def test_a_document_of_one_part_is_asked_about_once():
    document = f"{_words(1, 8)} {_words(11, 9)}"
    assert _ask(document, lambda text: "w5") == ("w5", [document])


def test_answers_that_do_not_fit_are_reduced_in_groups():
    document = " ".join(_words(number, 15) for number in range(1, 8))  # seven parts
    answer, texts = _ask(document, lambda text: " ".join([text.split()[0]] * 4))
    assert len(texts) == 7 + 3 + 1, "seven parts, three groups of at most three answers, the answers of the groups"
    assert texts[7].split("\n") == [" ".join([f"w{number}"] * 4) + "." for number in (1, 2, 3)]
    assert texts[10].split("\n") == [" ".join([f"w{number}"] * 4) + "." for number in (1, 4, 7)]
    assert answer == "w1 w1 w1 w1"


def test_answers_as_long_as_a_part_end_too():
    document = " ".join(_words(number, 15) for number in range(1, 10))
    answer, texts = _ask(document, lambda text: " ".join([text.split()[0]] * 3 * PART))
    assert len(texts) == 9 + 5 + 3 + 2 + 1 and all(len(text.split()) <= PART for text in texts)
    assert answer.startswith("w1 ")


def test_empty_answers_are_left_out():
    document = " ".join(_words(number, 15) for number in (1, 20, 40))
    answers = {"w20": " w90! ", "w90!": "w91"}
    answer, texts = _ask(document, lambda text: answers.get(text.split()[0], ""))
    assert texts[3:] == ["w90!"] and answer == "w91"
    assert _ask(document, lambda text: " ")[0] == ""


def test_a_sentence_longer_than_a_part_is_cut():
    words = _words(1, 2 * PART + 5)
    _, texts = _ask(f"{words} {_words(60, 4)}", lambda text: "w9")
    assert [len(text.split()) for text in texts[:3]] == [PART, PART, 4 + 3]
    assert " ".join(texts[:3]) == f"{words} {_words(60, 4)}"


def test_a_part_without_room_is_refused():
    with pytest.raises(InputError, match=r"leaves 3 tokens .* for the text; expected at least 16: ask a shorter"):
        MapReduce(str, make_tokenizer(), 3)


def _answerer(model, settings, question_format):
    return Answerer.wrap(
        model, make_tokenizer(), UnlimiformerConfig(**settings), question_format, dict(GENERATION), "map-reduce"
    )


QUESTION = " ".join(f"w{number}" for number in range(3, 13))
DOCUMENT = " ".join(_words(number, 11) for number in range(1, 80, 10))


@pytest.mark.parametrize(("place", "parts"), [("window", 8), ("decoder", 4)])
def test_an_encoder_decoder_is_asked_about_parts_of_one_window(place, parts, monkeypatch):
    """With the question in the window, a part has room for one sentence instead of two."""
    answerer = _answerer(make("t5"), {"window": WINDOW}, QuestionFormat(place, "w90 {question} "))
    with answerer.wrapped as wrapped:
        asked, generate = [], wrapped.engine.truncated_generate

        def record(texts, prompts, generation):
            answers = generate(texts, prompts, generation)
            asked.append((texts[0], prompts[0], answers[0]))
            return answers

        monkeypatch.setattr(wrapped.engine, "truncated_generate", record)
        answers = answerer.answers([Item("a", DOCUMENT, QUESTION, ("w1",))])
    question = f"w90 {QUESTION} "
    lengths = [len(wrapped.tokenizer(text)["input_ids"]) for text, _, _ in asked]
    assert max(lengths) <= WINDOW
    if place == "window":
        assert all(text.startswith(question) and prompt is None for text, prompt, _ in asked)
    else:
        assert all(prompt == question for _, prompt, _ in asked)
    texts = [text.removeprefix(question) for text, _, _ in asked]
    assert " ".join(texts[:parts]) == DOCUMENT
    group = texts[parts].split("\n")
    assert group == [f"{answer}." for _, _, answer in asked[: len(group)]] and len(group) > 2
    assert [answer.text for answer in answers] == [asked[-1][2]]


def test_a_decoder_only_model_is_asked_about_parts_of_a_fixed_length(monkeypatch):
    answerer = _answerer(tiny_decoder("llama"), {"window": 64, "block": 8, "top_k": 16}, QuestionFormat())
    monkeypatch.setattr(methods, "_PART_TOKENS", 50)
    with answerer.wrapped as wrapped:
        texts, generate = [], wrapped.engine.truncated_generate

        def record(asked, prompts, generation):
            assert prompts == ["w3"]
            texts.extend(asked)
            return generate(asked, prompts, generation)

        monkeypatch.setattr(wrapped.engine, "truncated_generate", record)
        answers = answerer.answers([Item("a", DOCUMENT, "w3", ("w1",))])
        sentences = [_words(number, 11) for number in range(1, 80, 10)]
        assert texts[:2] == [" ".join(sentences[:4]), " ".join(sentences[4:])]
        partial = generate(texts[:2], ["w3", "w3"], dict(GENERATION))
        assert texts[2:] == ["\n".join(f"{answer}." for answer in partial)]
        assert [answer.text for answer in answers] == generate(texts[2:], ["w3"], dict(GENERATION))


def test_parts_of_a_decoder_only_model_fit_its_context(monkeypatch):
    answerer = _answerer(tiny_decoder("llama"), {"window": 64, "block": 8, "top_k": 16}, QuestionFormat())
    with answerer.wrapped as wrapped:
        room = wrapped.engine.truncated_room(dict(GENERATION))
        assert 128 < room < 512 - 128 - GENERATION["max_new_tokens"], "the context without question and answer"
        texts = []
        monkeypatch.setattr(wrapped.engine, "truncated_generate", lambda t, p, g: texts.extend(t) or ["w1"])
        document = " ".join([DOCUMENT] * 6)
        answerer.answers([Item("a", document, "w3", ("w1",))])
    lengths = [len(wrapped.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    assert " ".join(texts[:-1]) == document and room - 11 < lengths[0] <= room, "as long as whole sentences allow"
