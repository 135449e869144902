"""All of transformers' `generate` on inputs longer than the window."""

from __future__ import annotations

import pytest
import torch
from reference import concatenated_states, encoded, logits_over
from tiny_models import WINDOW, long_input, random_ids
from transformers.generation.streamers import BaseStreamer

from unlimiformer import Unlimiformer

LENGTH = 150
ALL = 10**6


def _greedy_by_hand(model, states, steps: int) -> list[int]:
    """Argmax over full attention, recomputed from the start at every step."""
    tokens = [model.config.decoder_start_token_id]
    for _ in range(steps):
        logits = logits_over(model, states, torch.tensor([tokens]))[0, -1].clone()
        logits[model.generation_config.eos_token_id] = float("-inf")
        tokens.append(int(logits.argmax()))
    return tokens


def test_greedy_equals_full_attention_step_by_step(model):
    inputs = long_input(LENGTH)
    expected = _greedy_by_hand(model, concatenated_states(model, inputs["input_ids"][0], WINDOW), 6)
    with Unlimiformer(model, window=WINDOW, top_k=ALL):
        out = model.generate(**inputs, max_new_tokens=6, min_new_tokens=6, do_sample=False, num_beams=1)
    assert out[0].tolist() == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 4},
        {"num_beams": 4, "num_return_sequences": 3},
        {"num_beams": 3, "early_stopping": True, "length_penalty": 0.5, "no_repeat_ngram_size": 2},
        {"do_sample": True, "top_p": 0.9, "num_return_sequences": 2},
        {"do_sample": True, "num_beams": 2},
        {"do_sample": False, "repetition_penalty": 1.3, "max_length": 9},
        {"do_sample": False, "prefix_allowed_tokens_fn": lambda row, ids: [5, 6, 7]},
        {"do_sample": False, "bad_words_ids": [[5], [6]]},
        {"do_sample": False, "use_cache": False},
        {"do_sample": False, "cache_implementation": "static"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_every_mode_equals_full_attention(model, settings):
    """With everything retrieved, each mode must choose the tokens that it chooses over the concatenated states."""
    inputs = long_input(LENGTH)
    states = concatenated_states(model, inputs["input_ids"][0], WINDOW)
    settings = {"max_new_tokens": 7, "min_new_tokens": 4, **settings}
    if "max_length" in settings:
        del settings["max_new_tokens"], settings["min_new_tokens"]
    torch.manual_seed(3)
    expected = model.generate(**encoded(states), **settings)
    torch.manual_seed(3)
    with Unlimiformer(model, window=WINDOW, top_k=ALL):
        got = model.generate(**inputs, **settings)
    assert torch.equal(got, expected)


class _RecordingStreamer(BaseStreamer):
    def __init__(self) -> None:
        self.tokens: list[int | str] = []

    def put(self, value):
        self.tokens += value.reshape(-1).tolist()

    def end(self):
        self.tokens.append("end")


def test_scores_and_streaming(model):
    streamer = _RecordingStreamer()
    with Unlimiformer(model, window=WINDOW, top_k=8):
        out = model.generate(
            **long_input(LENGTH),
            max_new_tokens=5,
            min_new_tokens=5,
            do_sample=False,
            num_beams=1,
            streamer=streamer,
            output_scores=True,
            return_dict_in_generate=True,
        )
    assert streamer.tokens == [*out.sequences[0].tolist(), "end"]
    assert len(out.scores) == 5
    assert all(int(score.argmax()) == int(token) for score, token in zip(out.scores, out.sequences[0, 1:], strict=True))


def test_minimum_and_maximum_length_are_respected(model):
    with Unlimiformer(model, window=WINDOW, top_k=8):
        for minimum, maximum in ((3, 3), (5, 9)):
            out = model.generate(**long_input(LENGTH), min_new_tokens=minimum, max_new_tokens=maximum, do_sample=False)
            assert minimum <= out.shape[1] - 1 <= maximum


def test_output_attentions_does_not_break_generation(model):
    settings = {"max_new_tokens": 3, "do_sample": False}
    with Unlimiformer(model, window=WINDOW, top_k=8):
        plain = model.generate(**long_input(LENGTH), **settings)
        out = model.generate(**long_input(LENGTH), **settings, output_attentions=True, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_generation_inside_inference_mode(model, mode):
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    with Unlimiformer(model, window=WINDOW, top_k=8) as u:
        expected = model.generate(**long_input(LENGTH), **settings)
        memory = u.index(random_ids(1, LENGTH)[0])
        expected_from_memory = u.generate(memory, **settings).sequences
        assert torch.equal(expected_from_memory, expected), "both have the same input"
        with mode():
            assert torch.equal(model.generate(**long_input(LENGTH), **settings), expected)
            assert torch.equal(u.generate(memory, **settings).sequences, expected_from_memory)
            assert torch.equal(u.generate(u.index(random_ids(1, LENGTH)[0]), **settings).sequences, expected)


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_an_input_within_the_window_gives_the_models_own_output(model, dtype):
    """The settings for retrieval, such as `top_k`, do not matter then."""
    ids = random_ids(1, WINDOW - 4)
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "output_logits": True}
    plain = model.generate(input_ids=ids, return_dict_in_generate=True, **settings)
    with Unlimiformer(model, window=WINDOW, top_k=1, dtype=dtype, layers=(0,), heads=(1,)) as u:
        assert torch.equal(u.generate(ids[0], **settings).sequences, plain.sequences)
