"""All of transformers' `generate` on long inputs, and plain forward calls."""

from __future__ import annotations

import pytest
import torch
from reference import concatenated_states, differentiable_states, logits_over, relative
from tiny_models import WINDOW, make, random_ids

from unlimiformer import Unlimiformer, UnlimiformerError

LONG = 150
ALL = 10**6


@pytest.fixture(params=["bart", "t5"])
def model(request):
    return make(request.param)


def _inputs(rows: int = 1) -> dict[str, torch.Tensor]:
    ids = random_ids(rows, LONG)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _greedy_by_hand(model, states, steps: int) -> list[int]:
    """Argmax over full attention, recomputed from the start at every step."""
    start = model.config.decoder_start_token_id
    tokens = [start]
    for _ in range(steps):
        logits = logits_over(model, states, torch.tensor([tokens]))[0, -1].clone()
        logits[model.generation_config.eos_token_id] = float("-inf")
        tokens.append(int(logits.argmax()))
    return tokens


def test_greedy_equals_full_attention_step_by_step(model):
    inputs = _inputs()
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
def test_modes_give_what_full_attention_gives(model, settings):
    """With everything retrieved, each mode must choose the tokens that it chooses over the concatenated states."""
    from unlimiformer.engines.seq2seq.placeholder import PlaceholderOutput

    inputs = _inputs()
    states = concatenated_states(model, inputs["input_ids"][0], WINDOW)
    settings = {"max_new_tokens": 7, "min_new_tokens": 4, **settings}
    if "max_length" in settings:
        del settings["max_new_tokens"], settings["min_new_tokens"]
    torch.manual_seed(3)
    mask = torch.ones(states.shape[:2], dtype=torch.long)
    expected = model.generate(
        encoder_outputs=PlaceholderOutput(last_hidden_state=states), attention_mask=mask, **settings
    )
    torch.manual_seed(3)
    with Unlimiformer(model, window=WINDOW, top_k=ALL):
        got = model.generate(**inputs, **settings)
    assert torch.equal(got, expected)


def test_scores_and_streaming(model):
    from transformers.generation.streamers import BaseStreamer

    class Heard(BaseStreamer):
        def __init__(self):
            self.tokens = []

        def put(self, value):
            self.tokens += value.reshape(-1).tolist()

        def end(self):
            self.tokens.append("end")

    heard = Heard()
    with Unlimiformer(model, window=WINDOW, top_k=8):
        out = model.generate(
            **_inputs(),
            max_new_tokens=5,
            min_new_tokens=5,
            do_sample=False,
            num_beams=1,
            streamer=heard,
            output_scores=True,
            return_dict_in_generate=True,
        )
    assert heard.tokens == [*out.sequences[0].tolist(), "end"]
    assert len(out.scores) == 5
    assert all(int(score.argmax()) == int(token) for score, token in zip(out.scores, out.sequences[0, 1:], strict=True))


def test_lengths_are_kept(model):
    with Unlimiformer(model, window=WINDOW, top_k=8):
        for minimum, maximum in ((3, 3), (5, 9)):
            out = model.generate(**_inputs(), min_new_tokens=minimum, max_new_tokens=maximum, do_sample=False)
            assert minimum <= out.shape[1] - 1 <= maximum


def test_output_attentions_does_not_break_generation(model):
    with Unlimiformer(model, window=WINDOW, top_k=8):
        plain = model.generate(**_inputs(), max_new_tokens=3, do_sample=False)
        asked = model.generate(
            **_inputs(), max_new_tokens=3, do_sample=False, output_attentions=True, return_dict_in_generate=True
        )
    assert torch.equal(asked.sequences, plain)


def test_labels_give_the_loss_over_the_long_input(model):
    inputs, labels = _inputs(), random_ids(1, 6, seed=9)
    states = concatenated_states(model, inputs["input_ids"][0], WINDOW)
    with Unlimiformer(model, window=WINDOW, top_k=ALL), torch.no_grad():
        got = model(**inputs, labels=labels)
    from unlimiformer.engines.seq2seq.placeholder import PlaceholderOutput

    with torch.no_grad():
        expected = model(
            encoder_outputs=PlaceholderOutput(last_hidden_state=states),
            attention_mask=torch.ones(states.shape[:2], dtype=torch.long),
            labels=labels,
        )
    assert abs(float(got.loss - expected.loss)) < 1e-5
    assert relative(got.logits, expected.logits) < 2e-5


def test_gradients_reach_encoder_and_decoder(model):
    """Every parameter's gradient equals that of full attention over the concatenated states."""
    inputs, labels = _inputs(), random_ids(1, 6, seed=9)
    with Unlimiformer(model, window=WINDOW, top_k=ALL):
        model(**inputs, labels=labels).loss.backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    from unlimiformer.engines.seq2seq.placeholder import PlaceholderOutput

    states = differentiable_states(model, inputs["input_ids"][0], WINDOW)
    mask = torch.ones(states.shape[:2], dtype=torch.long)
    model(
        encoder_outputs=PlaceholderOutput(last_hidden_state=states), attention_mask=mask, labels=labels
    ).loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(got[name], gradient, atol=1e-5 + 1e-4 * float(gradient.abs().max())), name


def test_inputs_embeds_that_are_too_long_are_refused(model):
    embeds = model.get_input_embeddings()(random_ids(1, LONG))
    with Unlimiformer(model, window=WINDOW), pytest.raises(UnlimiformerError, match="inputs_embeds has 150 positions"):
        model(inputs_embeds=embeds, decoder_input_ids=random_ids(1, 2))


def test_inputs_embeds_within_the_window_are_the_models_own(model):
    embeds = model.get_input_embeddings()(random_ids(1, 20))
    plain = model(inputs_embeds=embeds, decoder_input_ids=random_ids(1, 2)).logits
    with Unlimiformer(model, window=WINDOW):
        assert torch.equal(model(inputs_embeds=embeds, decoder_input_ids=random_ids(1, 2)).logits, plain)


def test_old_encoder_outputs_are_refused_not_misread(model):
    with Unlimiformer(model, window=WINDOW), torch.no_grad():
        first = model.get_encoder()(**_inputs())
        model.get_encoder()(input_ids=random_ids(1, LONG, seed=8))
        with pytest.raises(UnlimiformerError, match="memory behind these encoder outputs is gone"):
            model(encoder_outputs=first, decoder_input_ids=random_ids(1, 2))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_inference_mode(model, mode):
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    with Unlimiformer(model, window=WINDOW, top_k=8) as u:
        expected = model.generate(**_inputs(), **settings)
        memory = u.index(random_ids(LONG))
        with mode():
            assert torch.equal(model.generate(**_inputs(), **settings), expected)
            assert torch.equal(u.generate(memory, **settings).sequences, u.generate(memory, **settings).sequences)


def test_a_removed_wrapper_refuses_to_work(model):
    with Unlimiformer(model, window=WINDOW) as u:
        memory = u.index(random_ids(LONG))
    for use in (lambda: u.generate(memory), lambda: u.index(random_ids(LONG))):
        with pytest.raises(UnlimiformerError, match="the wrapper was removed"):
            use()


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_a_text_within_the_window_gives_the_models_own_output_whatever_top_k(model, dtype):
    ids = random_ids(1, WINDOW - 4)
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "output_logits": True}
    plain = model.generate(input_ids=ids, return_dict_in_generate=True, **settings)
    with Unlimiformer(model, window=WINDOW, top_k=1, dtype=dtype, layers=(0,), heads=(1,)) as u:
        assert torch.equal(u.generate(ids[0], **settings).sequences, plain.sequences)


def test_only_key_and_value_projections_trained(model):
    """Their gradients must not be lost when neither queries nor states need any."""
    inputs, labels = _inputs(), random_ids(1, 6, seed=9)
    trained = [n for n, _ in model.named_parameters() if ("encoder_attn" in n or "EncDecAttention" in n)]
    trained = [n for n in trained if any(f".{p}." in n for p in ("k_proj", "v_proj", "k", "v"))]
    assert len(trained) >= 4
    grads = []
    for everything in (True, False):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(everything or name in trained)
        model.zero_grad()
        with Unlimiformer(model, window=WINDOW, top_k=9):
            model(**inputs, labels=labels).loss.backward()
        grads.append({name: dict(model.named_parameters())[name].grad.clone() for name in trained})
    assert all(torch.allclose(grads[0][name], grads[1][name], atol=1e-6) for name in trained)


def test_wrapping_twice_is_refused_and_changes_nothing(model):
    with Unlimiformer(model, window=WINDOW):
        with pytest.raises(UnlimiformerError, match="wrapped already"):
            Unlimiformer(model, window=WINDOW)
        assert model.generate(**_inputs(), max_new_tokens=2).shape[0] == 1
    assert not any("forward" in module.__dict__ for module in model.modules())
