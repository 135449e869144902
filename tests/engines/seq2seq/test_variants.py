"""Models as people have them: in bfloat16, with LoRA, quantised, of an unknown kind."""

from __future__ import annotations

import pytest
import torch
from reference import concatenated_states, logits_over, relative
from tiny_models import WINDOW, make, random_ids

from unlimiformer import Unlimiformer, UnlimiformerError, UnsupportedModelError
from unlimiformer.adapters import ADAPTERS

LONG = 150
ALL = 10**6


def _target():
    return random_ids(1, 5, seed=2)


@torch.no_grad()
def _both(model, base=None, **settings):
    """Logits of the wrapped model, and of full attention over the concatenated states."""
    base = model if base is None else base
    ids = random_ids(1, LONG)
    expected = logits_over(base, concatenated_states(base, ids[0], WINDOW), _target())
    with Unlimiformer(model, window=WINDOW, top_k=ALL, **settings):
        got = model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=_target()).logits
    return got.float(), expected.float()


@pytest.mark.parametrize("name", ["bart", "t5", "led", "t5gemma", "t5gemma2", "marian"])
def test_bfloat16(name):
    got, expected = _both(make(name).to(torch.bfloat16))
    assert relative(got, expected) < 0.05  # eight bits of mantissa through two layers
    with Unlimiformer(make(name).to(torch.bfloat16), window=WINDOW, top_k=9) as u:
        assert u.index(random_ids(LONG)).store.states.dtype is torch.bfloat16
        assert u.generate(random_ids(LONG), max_new_tokens=4, min_new_tokens=4).token_ids.shape == (5,)


@pytest.mark.parametrize(("name", "modules"), [("bart", ["q_proj", "k_proj", "v_proj"]), ("t5", ["q", "k", "v", "o"])])
def test_lora(name, modules):
    from peft import LoraConfig, get_peft_model

    plain = make(name)
    before = _both(plain)[0]
    adapted = get_peft_model(plain, LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=modules, r=3, lora_alpha=8))
    with torch.no_grad():
        for parameter_name, parameter in adapted.named_parameters():
            if "lora_B" in parameter_name:
                parameter.normal_(0, 0.2)
    adapted.eval()
    got, expected = _both(adapted, adapted.get_base_model())
    assert relative(got, expected) < 5e-5
    assert relative(got, before) > 0.01, "the adapter must matter here, or this test shows nothing"
    with adapted.disable_adapter():
        assert relative(_both(adapted, adapted.get_base_model())[0], before) < 5e-5


def test_lora_generates_with_what_is_active_now():
    """Weights derived from a layer must not outlive a change of it."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(make("bart"), LoraConfig(target_modules=["k_proj", "v_proj"], r=3)).eval()
    ids = random_ids(1, LONG)
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "output_logits": True}
    with Unlimiformer(adapted, window=WINDOW, top_k=9):
        first = adapted.generate(input_ids=ids, return_dict_in_generate=True, **settings).logits[0]
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0, 0.3)
        second = adapted.generate(input_ids=ids, return_dict_in_generate=True, **settings).logits[0]
    with Unlimiformer(adapted, window=WINDOW, top_k=9):
        fresh = adapted.generate(input_ids=ids, return_dict_in_generate=True, **settings).logits[0]
    assert torch.equal(second, fresh)
    assert relative(first, second) > 1e-3


@pytest.mark.parametrize("kind", ["weights", "weights and activations"])
def test_int8_linears(kind):
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    model = make("bart")
    plain = _both(model)[0]
    quantize_(model, Int8WeightOnlyConfig() if kind == "weights" else Int8DynamicActivationInt8WeightConfig())
    got, expected = _both(model)
    assert relative(got, plain) > 1e-4, "quantisation must matter here, or this test shows nothing"
    assert relative(got, expected) < (1e-4 if kind == "weights" else 0.03)  # activations are rounded anew on every path


@pytest.fixture
def unknown_family(monkeypatch):
    """Takes families out of the registry: their models are then of no known kind."""

    def forget(*names):
        for name in names:
            monkeypatch.delitem(ADAPTERS, name)

    return forget


@pytest.mark.parametrize("name", ["bart", "mbart", "nllb-moe", "seamless_m4t"])
def test_an_unknown_model_is_guessed_and_verified(unknown_family, name):
    unknown_family(name)
    got, expected = _both(make(name))
    assert relative(got, expected) < 2e-5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("t5gemma2", "has no cross-attention of a known shape"),
        ("fsmt", "has no cross-attention of a known shape"),
    ],
)
def test_an_unknown_model_that_cannot_be_guessed_is_refused(unknown_family, name, words):
    unknown_family(name)
    model = make(name)
    with pytest.raises(UnsupportedModelError, match=words):
        Unlimiformer(model, window=WINDOW)
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("settings", [{}, {"top_k": 1}, {"prefix": "w1 w2"}, {"dtype": "int8"}])
def test_a_guess_is_verified_whatever_the_settings(unknown_family, tokenizer, settings):
    unknown_family("bart")
    Unlimiformer(make("bart"), tokenizer, window=WINDOW, **settings).remove()


@pytest.mark.parametrize("settings", [{}, {"top_k": 1}, {"prefix": "w1 w2"}, {"dtype": "int8"}])
def test_a_guess_that_gives_other_numbers_is_refused(unknown_family, monkeypatch, tokenizer, settings):
    from unlimiformer.adapters.generic import _GuessedAttention

    unknown_family("bart")
    monkeypatch.setattr(_GuessedAttention, "scaling", property(lambda self: 1.0))
    model = make("bart")
    with pytest.raises(UnsupportedModelError, match="gave other results than the model"):
        Unlimiformer(model, tokenizer, window=WINDOW, **settings)
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_global_attention_of_led_is_cut_with_the_ids():
    """By hand: each window gets its own stretch of the mask."""
    from unlimiformer.text.windows import plan_windows

    model, ids = make("led"), random_ids(1, LONG)
    marks = torch.zeros_like(ids)
    marks[0, ::10] = 1
    parts = []
    for win in plan_windows(LONG, WINDOW):
        piece, mark = ids[:, win.start : win.end], marks[:, win.start : win.end]
        with torch.no_grad():
            states = model.get_encoder()(piece, attention_mask=torch.ones_like(piece), global_attention_mask=mark)[0]
        parts.append(states[:, win.keep_start - win.start : win.keep_end - win.start])
    expected = logits_over(model, torch.cat(parts, dim=1), _target())
    with Unlimiformer(model, window=WINDOW, top_k=ALL), torch.no_grad():
        call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": _target()}
        got = model(**call, global_attention_mask=marks).logits
        without = model(**call).logits
    assert relative(got, expected) < 2e-5
    assert relative(got, without) > 1e-3


def test_router_logits_of_a_long_input_are_refused():
    ids = random_ids(1, LONG)
    with (
        Unlimiformer(make("switch_transformers"), window=WINDOW) as u,
        pytest.raises(UnlimiformerError, match="router"),
    ):
        u.model(input_ids=ids, labels=_target(), output_router_logits=True)


def test_learned_prompts_are_refused():
    from peft import PrefixTuningConfig, get_peft_model

    tuned = get_peft_model(make("bart"), PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=2))
    with pytest.raises(UnsupportedModelError, match="learned prompts"):
        Unlimiformer(tuned)


def test_a_model_that_uses_prompts_inside_attention_is_refused():
    model = make("mvp")
    model.config.use_prompt = True
    with pytest.raises(UnsupportedModelError, match="use_prompt=True"):
        Unlimiformer(model)
