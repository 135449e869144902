"""Answers of an encoder–decoder from passages that are encoded again behind the question."""

from __future__ import annotations

import pytest
import torch
from conftest import make_book
from tiny_models import WINDOW, make
from transformers.generation.streamers import BaseStreamer

from unlimiformer import Unlimiformer
from unlimiformer.errors import InputError

GREEDY = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1}


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("beams", [1, 3])
def test_an_answer_is_the_plain_models_over_question_and_passages(tokenizer, family, beams):
    model, book = make(family), make_book(400)
    generation = {**GREEDY, "num_beams": beams}
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=24, selection="reread") as u:
        memory = u.index(book)
        output = u.generate(memory, prompt="w3 w4", provenance=True, **generation)
        without = u.generate(memory, prompt="w3 w4", **generation)
    assert torch.equal(output.selected, without.selected) and 0 < output.selected.shape[0] <= 24
    passages = tokenizer.decode(memory.token_ids[output.selected])
    inputs = tokenizer(f"w3 w4 {passages}", return_tensors="pt")
    assert inputs["input_ids"].shape[1] <= WINDOW
    expected = model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], **generation)
    assert torch.equal(output.sequences, expected) and torch.equal(without.sequences, expected)
    weights = output.provenance.weights
    assert weights.shape == (len(memory),) and float(weights.sum()) == pytest.approx(1, abs=1e-5)
    assert float(weights[output.selected].sum()) == pytest.approx(1, abs=1e-5), "nothing outside the passages"


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_question_about_a_fact_is_answered_from_several_contexts(tokenizer, family, beams):
    """The answer is the surer one of those that the plain model gives to half of the passages and to all."""
    model, book = make(family), make_book(400)
    generation = {**GREEDY, "num_beams": beams}
    windows = []
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=24, selection="reread") as u:
        memory = u.index(book)
        u.engine._reader._ranker._splitter._size = 5
        read = u.engine._reader.read
        u.engine._reader.read = lambda *query: windows.append(read(*query)) or windows[-1]
        output = u.generate(memory, prompt="w3 w4?", **generation)
        traced = u.generate(memory, prompt="w3 w4?", provenance=True, **generation)
        u.generate(memory, prompt="Describe w3 and w4.", **generation)
    half, full = windows[0]
    assert half.rows.shape[0] < full.rows.shape[0] and set(half.selected.tolist()) < set(full.selected.tolist())
    assert len(windows[2]) == 1, "a description has one context"
    answers = []
    for part in windows[0]:
        inputs = tokenizer(f"w3 w4? {tokenizer.decode(memory.token_ids[part.selected])}", return_tensors="pt")
        plain = model.generate(**inputs, **generation, output_scores=True, return_dict_in_generate=True)
        logs = plain.get("sequences_scores")
        if logs is None:
            logs = model.compute_transition_scores(plain.sequences, plain.scores, normalize_logits=True).mean(1)
        answers.append((float(logs[0]), plain.sequences[0].tolist()))
    expected = max(answers, key=lambda answer: min(answer[0], -0.1))[1]
    assert len({tuple(answer) for _, answer in answers}) > 1, "the test would see nothing otherwise"
    found = output.sequences[0].tolist()
    assert found[: len(expected)] == expected and set(found[len(expected) :]) <= {model.config.pad_token_id}
    assert torch.equal(traced.sequences, output.sequences) and torch.equal(output.selected, full.selected)
    assert float(traced.provenance.weights[full.selected].sum()) == pytest.approx(1, abs=1e-5)


def test_the_chosen_answer_is_streamed(tokenizer):
    class Words(BaseStreamer):
        def __init__(self):
            self.tokens, self.ended = [], False

        def put(self, value):
            self.tokens += value.reshape(-1).tolist()

        def end(self):
            self.ended = True

    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=24, selection="reread") as u:
        u.engine._reader._ranker._splitter._size = 5
        streamer = Words()
        output = u.generate(make_book(400), prompt="w3 w4?", streamer=streamer, **GREEDY)
    assert streamer.ended and streamer.tokens == output.sequences[0, : len(streamer.tokens)].tolist()
    assert len(streamer.tokens) > 1


def test_passages_that_share_words_with_the_question_are_read(tokenizer):
    words = ["w1"] * 400
    words[250:256] = ["w30", "w31", "w32", "w33", "w34", "w35"]
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=24, selection="reread") as u:
        memory = u.index(" ".join(words))
        u.engine._reader._ranker._splitter._size = 6
        selected = u.generate(memory, prompt="w31 w33", **GREEDY).selected
    read = tokenizer.decode(memory.token_ids[selected]).split()
    assert {"w31", "w33"} <= set(read)


def test_a_short_document_is_read_whole(tokenizer):
    model = make("bart")
    with Unlimiformer(model, tokenizer, window=WINDOW, selection="reread") as u:
        output = u.generate("w5 w6 w7", prompt="w3", **GREEDY)
    inputs = tokenizer("w3 w5 w6 w7", return_tensors="pt")
    assert torch.equal(output.sequences, model.generate(inputs["input_ids"], **GREEDY))


def test_batch_equals_single_calls(tokenizer):
    texts = [make_book(400), make_book(90), "w1 w2 w3"]
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, selection="reread") as u:
        batch = u.generate(texts, prompt=["w5", "w6 w7", "w8"], **GREEDY)
        single = [u.generate(t, prompt=p, **GREEDY) for t, p in zip(texts, ["w5", "w6 w7", "w8"], strict=True)]
    assert [out.text for out in batch] == [out.text for out in single]


def test_the_plain_model_gets_the_question_before_the_text(tokenizer):
    model = make("bart")
    with Unlimiformer(model, tokenizer, window=WINDOW, selection="reread") as u:
        (answer,) = u.engine.truncated_generate(["w5 w6"], ["w3 "], GREEDY)
    expected = model.generate(tokenizer("w3 w5 w6", return_tensors="pt")["input_ids"], **GREEDY)
    assert answer == tokenizer.decode(expected[0], skip_special_tokens=True)


def test_a_question_that_fills_the_window_is_refused(tokenizer):
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, selection="reread") as u:
        with pytest.raises(InputError, match="the question leaves no room in a window"):
            u.generate(make_book(200), prompt=" ".join(["w1"] * WINDOW), **GREEDY)
        with pytest.raises(InputError, match="selection is 'blocks'; it is for decoder-only models"):
            Unlimiformer(make("t5"), tokenizer, selection="blocks")
