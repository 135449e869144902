"""Answers from the passages that a prompt attends to."""

from __future__ import annotations

import pytest
import torch
from reference import encoded
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq.focus import select_passages
from unlimiformer.errors import UnlimiformerError

GREEDY = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1}


def test_passages_are_the_best_blocks_and_their_neighbours():
    weights = torch.zeros(330)
    weights[100], weights[325] = 0.6, 0.4
    assert select_passages(weights, 1).tolist() == list(range(64, 160)), "block 3 and its neighbours 2 and 4"
    assert select_passages(weights, 100).tolist() == [*range(64, 160), *range(288, 330)], "the last block has 10 tokens"
    assert select_passages(weights, 10**6).tolist() == list(range(330))


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_an_answer_comes_from_the_selected_states_alone(tokenizer, book, family):
    model = make(family)
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=10**6, focus=60) as u:
        memory = u.index(book)
        answer = u.generate(memory, prompt="w3 w4", provenance=True, **GREEDY)
        with u.engine.context(focus=0):
            whole = u.generate(memory, prompt="w3 w4", **GREEDY)
    prompt = answer.sequences[:, : answer.prompt_length]
    assert tokenizer.decode(prompt[0], skip_special_tokens=True) == "w3 w4"
    model.set_attn_implementation("eager")
    states = memory.store.states[None]
    with torch.no_grad():
        attentions = model(**encoded(states), decoder_input_ids=prompt, output_attentions=True).cross_attentions
    rows = select_passages(torch.stack(attentions).sum(dim=(0, 1, 2, 3)), 60)
    assert 60 <= len(rows) < len(memory)
    expected = model.generate(**encoded(states[:, rows]), decoder_input_ids=prompt, **GREEDY)
    assert torch.equal(answer.sequences, expected) and not torch.equal(answer.sequences, whole.sequences)
    weights = answer.provenance.weights
    assert weights.shape == (len(memory),) and torch.isclose(weights.sum(), torch.tensor(1.0), atol=1e-5)
    assert weights[rows].sum() == weights.sum() and answer.provenance.memory is memory


@pytest.mark.parametrize("store", ["exact", "ivf"])
def test_batches_beams_and_stores(tokenizer, book, store):
    texts = [book, book[:400], "w1 w2 w3"]
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=12, focus=40, store=store, dtype="int8") as u:
        settings = {"prompt": "w5", "max_new_tokens": 5, "do_sample": False, "num_beams": 3}
        batch = u.generate(texts, **settings)
        single = [u.generate(text, **settings) for text in texts]
    assert [out.text for out in batch] == [out.text for out in single]


def test_two_prompts_about_one_memory_in_one_call(tokenizer, book):
    with Unlimiformer(make("bart"), tokenizer, window=WINDOW, top_k=9, focus=40) as u:
        memory = u.index(book)
        batch = u.generate([memory, memory], prompt=["w3", "w70"], **GREEDY)
        single = [u.generate(memory, prompt=prompt, **GREEDY) for prompt in ("w3", "w70")]
    assert [out.text for out in batch] == [out.text for out in single]


def test_all_tokens_are_used_without_a_prompt_or_with_a_wide_focus(tokenizer, book):
    model = make("bart")
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9) as u:
        plain, prompted = u.generate(book, **GREEDY).text, u.generate(book, prompt="w3", **GREEDY).text
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, focus=1000) as u:
        assert u.generate(book, prompt="w3", **GREEDY).text == prompted
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, focus=40) as u:
        assert u.generate(book, **GREEDY).text == plain
        with u.engine.full_attention():
            everything = u.generate(book, prompt="w3", **GREEDY).text
        assert u.engine.hooks.context.focus == 40
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=10**6) as u:
        assert u.generate(book, prompt="w3", **GREEDY).text == everything


def test_layers_that_do_not_retrieve_attend_to_the_first_window(tokenizer, book):
    """If no layer retrieves, the focus changes nothing."""
    model = make("bart")
    answers = []
    for focus in (0, 40):
        with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, layers=(), focus=focus) as u:
            answers.append(u.generate(book, prompt="w3", **GREEDY).text)
    assert answers[0] == answers[1]


def test_invalid_focus_is_refused(tokenizer):
    with pytest.raises(UnlimiformerError, match="focus is 40; it is for encoder–decoders"):
        Unlimiformer(tiny_decoder("llama"), tokenizer, focus=40)
    with pytest.raises(UnlimiformerError, match="focus is -1; expected a whole number of at least 0"):
        Unlimiformer(make("bart"), tokenizer, focus=-1)
