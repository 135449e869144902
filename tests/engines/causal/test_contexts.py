"""Answers from several contexts, compared with those of the plain model to each context by itself."""

from __future__ import annotations

import pytest
import torch
from causal_helpers import chosen_context, generate, random_prompt
from tiny_causal_models import tiny_decoder
from transformers.generation.streamers import BaseStreamer

from unlimiformer import Unlimiformer
from unlimiformer.engines import contexts
from unlimiformer.engines.causal import kv_cache
from unlimiformer.engines.causal.generation import Query, RereadGenerator
from unlimiformer.engines.causal.prompts import PromptSuffix
from unlimiformer.memory.encode import TokenizedInput

SETTINGS = {"block": 8, "top_k": 64, "window": 64}


@pytest.fixture
def wrapped():
    with Unlimiformer(tiny_decoder("llama"), selection="reread", dtype="float32", **SETTINGS) as u:
        yield u


@torch.no_grad()
def prompts_of(u, prefix, document, suffix):
    """Token ids of the prompt of every context."""
    (memory,) = u.engine.indexer.index_inputs([TokenizedInput(document, prefix, {})])
    query = Query(memory, PromptSuffix(suffix, suffix, "w1?"))
    return [prompt.ids for prompt in RereadGenerator(u.engine).build_prompts(query)]


@pytest.mark.parametrize("mode", [{}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 2}])
def test_the_likeliest_answer_is_taken(wrapped, mode):
    """A document in one window has one context, longer ones have three; all of them in one batch."""
    settings = {"max_new_tokens": 6, "do_sample": False, **mode}
    inputs = [random_prompt(seed, length) for seed, length in ((1, 30), (2, 200), (3, 300), (4, 250))]
    got = generate(wrapped, *(list(part) for part in zip(*inputs, strict=True)), **settings)
    chosen = []
    for parts, rows in zip(inputs, got.split(got.shape[0] // len(inputs)), strict=True):
        prompts = prompts_of(wrapped, *parts)
        assert len(prompts) == (1 if parts[1].shape[0] == 30 else 3)
        assert [len(p) for p in prompts] == sorted({len(p) for p in prompts})
        number, answer = chosen_context(wrapped.model, prompts, **settings)
        assert rows[0].tolist() == answer.tolist()
        chosen.append(number)
    assert len(set(chosen[1:])) > 1, "different contexts must win, or this shows nothing"


def test_the_first_answer_that_the_model_is_sure_of_is_taken(wrapped, monkeypatch):
    """A lower threshold makes the model sure of every answer: that of the smallest context is taken."""
    parts, settings = random_prompt(2, 200), {"max_new_tokens": 6, "do_sample": False}
    prompts = prompts_of(wrapped, *parts)
    assert chosen_context(wrapped.model, prompts, **settings)[0] > 0, "or this shows nothing"
    monkeypatch.setattr(contexts, "_SURE", -99.0)
    number, answer = chosen_context(wrapped.model, prompts, **settings)
    assert number == 0 and generate(wrapped, *parts, **settings)[0].tolist() == answer.tolist()


def test_answers_of_different_lengths_are_compared_by_their_mean(wrapped):
    """An end token ends some answers earlier than others."""
    parts = random_prompt(3, 300)
    prompts, settings = prompts_of(wrapped, *parts), {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    first = wrapped.model.generate(prompts[0][None], **settings)[0, prompts[0].shape[0] :]
    settings["eos_token_id"] = int(first[3])
    _, answer = chosen_context(wrapped.model, prompts, **settings)
    got = generate(wrapped, *parts, **settings)[0]
    assert got[: answer.shape[0]].tolist() == answer.tolist() and not got[answer.shape[0] :].any()


def test_a_sample_is_drawn_from_the_largest_context(wrapped):
    parts, settings = random_prompt(2, 200), {"max_new_tokens": 6, "do_sample": True, "num_return_sequences": 2}
    prompt = prompts_of(wrapped, *parts)[-1]
    torch.manual_seed(3)
    expected = wrapped.model.generate(prompt[None], **settings)[:, prompt.shape[0] :]
    torch.manual_seed(3)
    assert generate(wrapped, *parts, **settings).tolist() == expected.tolist()


def test_one_answer_is_streamed(wrapped):
    class Recorder(BaseStreamer):
        """Takes one row, as the streamers of transformers do."""

        tokens: list[int]
        ended = False

        def put(self, value):
            """The prompt first, then one token at a time."""
            assert value.shape[0] == 1
            if value.ndim == 1:
                self.tokens.append(int(value))

        def end(self):
            """The last call."""
            self.ended = True

    recorder = Recorder()
    recorder.tokens = []
    answer = generate(wrapped, *random_prompt(2, 200), max_new_tokens=6, do_sample=False, streamer=recorder)
    assert recorder.tokens == answer[0].tolist() and recorder.ended


def test_a_document_of_one_window_is_read_once_for_all_questions(monkeypatch):
    read, read_prefix = [], kv_cache.read_prefix

    def counted(decoder, prefix):
        read.append(prefix.tolist())
        return read_prefix(decoder, prefix)

    monkeypatch.setattr(kv_cache, "read_prefix", counted)
    prefix, document, first = random_prompt(1, 30)
    second = torch.cat((first.flip(0), first[:2]))
    settings = {"max_new_tokens": 6, "do_sample": False}
    model = tiny_decoder("llama")
    answers = []
    with Unlimiformer(model, selection="reread", dtype="float32", **SETTINGS) as u:
        for suffix in (first, second, first):
            answers.append(generate(u, prefix, document, suffix, **settings)[0].tolist())
    assert read == [[*prefix.tolist(), *document.tolist()]]
    for suffix, answer in zip((first, second, first), answers, strict=True):
        ids = torch.cat((prefix, document, suffix))[None]
        assert answer == model.generate(ids, **settings)[0, ids.shape[1] :].tolist()
