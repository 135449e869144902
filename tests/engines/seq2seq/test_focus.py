"""Answers from the passages that a prompt looks at."""

from __future__ import annotations

import pytest
import torch
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq.focus import passages
from unlimiformer.engines.seq2seq.placeholder import PlaceholderOutput
from unlimiformer.errors import UnlimiformerError

GREEDY = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1}


def test_passages_are_the_best_blocks_and_their_neighbours():
    weights = torch.zeros(330)
    weights[100], weights[325] = 0.6, 0.4
    assert passages(weights, 1).tolist() == list(range(64, 160)), "block 3, and 2 and 4 beside it"
    assert passages(weights, 100).tolist() == [*range(64, 160), *range(288, 330)], "the last block has 10 tokens"
    assert passages(weights, 10**6).tolist() == list(range(330))


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_an_answer_is_the_plain_models_over_those_states_alone(tokenizer, book, family):
    model = make(family)
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=10**6, focus=60) as u:
        memory = u.index(book)
        answer = u.generate(memory, prompt="w3 w4", provenance=True, **GREEDY)
        u.engine.focus = 0
        whole = u.generate(memory, prompt="w3 w4", **GREEDY)
        prompt = u.engine.decoder_prompts(["w3 w4"])
    model.set_attn_implementation("eager")
    states = memory.store.states[None]
    mask = torch.ones(states.shape[:2], dtype=torch.long)
    plain = {"encoder_outputs": PlaceholderOutput(last_hidden_state=states), "attention_mask": mask}
    with torch.no_grad():
        looked = model(**plain, decoder_input_ids=prompt, output_attentions=True).cross_attentions
    rows = passages(torch.stack(looked).sum(dim=(0, 1, 2, 3)), 60)
    assert 60 <= len(rows) < len(memory)
    part = PlaceholderOutput(last_hidden_state=states[:, rows])
    expected = model.generate(encoder_outputs=part, attention_mask=mask[:, rows], decoder_input_ids=prompt, **GREEDY)
    assert torch.equal(answer.sequences, expected) and not torch.equal(answer.sequences, whole.sequences)
    weights = answer.provenance.weights
    assert weights.shape == (len(memory),) and torch.isclose(weights.sum(), torch.tensor(1.0), atol=1e-5)
    assert weights[rows].sum() == weights.sum() and answer.provenance.memory is memory


@pytest.mark.parametrize("store", ["exact", "cells"])
def test_batches_beams_and_stores(tokenizer, book, store):
    texts = [book, book[:400], "w1 w2 w3"]
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=12, focus=40, store=store, dtype="int8") as u:
        together = u.generate(texts, prompt="w5", max_new_tokens=5, do_sample=False, num_beams=3)
        alone = [u.generate(text, prompt="w5", max_new_tokens=5, do_sample=False, num_beams=3) for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one.text == other.text


def test_one_memory_asked_twice_in_a_call(tokenizer, book):
    with Unlimiformer(make("bart"), tokenizer, window=WINDOW, top_k=9, focus=40) as u:
        memory = u.index(book)
        together = u.generate([memory, memory], prompt=["w3", "w70"], **GREEDY)
        alone = [u.generate(memory, prompt=prompt, **GREEDY) for prompt in ("w3", "w70")]
    assert [out.text for out in together] == [out.text for out in alone]


def test_without_a_prompt_or_with_a_wide_focus_all_tokens_are_seen(tokenizer, book):
    model = make("bart")
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9) as u:
        plain, prompted = u.generate(book, **GREEDY).text, u.generate(book, prompt="w3", **GREEDY).text
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, focus=1000) as u:
        assert u.generate(book, prompt="w3", **GREEDY).text == prompted
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, focus=40) as u:
        assert u.generate(book, **GREEDY).text == plain
        with u.engine.seeing_everything():
            everything = u.generate(book, prompt="w3", **GREEDY).text
        assert u.engine.focus == 40
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=10**6) as u:
        assert u.generate(book, prompt="w3", **GREEDY).text == everything


def test_layers_that_do_not_retrieve_still_see_the_first_window(tokenizer, book):
    """With no layer that retrieves, a focus changes nothing."""
    model = make("bart")
    answers = []
    for focus in (0, 40):
        with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, layers=(), focus=focus) as u:
            answers.append(u.generate(book, prompt="w3", **GREEDY).text)
    assert answers[0] == answers[1]


def test_what_cannot_be_focused_is_refused(tokenizer):
    with pytest.raises(UnlimiformerError, match="focus is 40; it is for encoder–decoders"):
        Unlimiformer(tiny_decoder("llama"), tokenizer, focus=40)
    with pytest.raises(UnlimiformerError, match="focus is -1; expected a whole number of at least 0"):
        Unlimiformer(make("bart"), tokenizer, focus=-1)
