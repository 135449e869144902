"""Models as they are often loaded: in bfloat16, with LoRA, quantised, with learned prompts."""

from __future__ import annotations

import pytest
import torch
from reference import concatenated_states, logits_over, relative
from tiny_models import WINDOW, make, random_ids

from unlimiformer import Unlimiformer, UnsupportedModelError

LENGTH = 150
ALL = 10**6


@torch.no_grad()
def _logits_and_reference(model, base=None):
    """Logits of the wrapped model, and of full attention over the concatenated states."""
    base = model if base is None else base
    ids, target = random_ids(1, LENGTH), random_ids(1, 5, seed=2)
    expected = logits_over(base, concatenated_states(base, ids[0], WINDOW), target)
    with Unlimiformer(model, window=WINDOW, top_k=ALL):
        got = model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=target).logits
    return got.float(), expected.float()


@torch.no_grad()
def _randomize_lora(adapted, scale):
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.normal_(0, scale)


@pytest.mark.parametrize("name", ["bart", "t5", "led", "t5gemma", "t5gemma2", "marian"])
def test_bfloat16(name):
    got, expected = _logits_and_reference(make(name).to(torch.bfloat16))
    assert relative(got, expected) < 0.05  # eight bits of mantissa through two layers
    with Unlimiformer(make(name).to(torch.bfloat16), window=WINDOW, top_k=9) as u:
        assert u.index(random_ids(LENGTH)).store.states.dtype is torch.bfloat16
        assert u.generate(random_ids(LENGTH), max_new_tokens=4, min_new_tokens=4).token_ids.shape == (5,)


@pytest.mark.parametrize(("name", "modules"), [("bart", ["q_proj", "k_proj", "v_proj"]), ("t5", ["q", "k", "v", "o"])])
def test_lora(name, modules):
    from peft import LoraConfig, get_peft_model

    plain = make(name)
    before = _logits_and_reference(plain)[0]
    adapted = get_peft_model(plain, LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=modules, r=3, lora_alpha=8))
    _randomize_lora(adapted, 0.2)
    adapted.eval()
    got, expected = _logits_and_reference(adapted, adapted.get_base_model())
    assert relative(got, expected) < 5e-5
    assert relative(got, before) > 0.01, "the adapter must matter here, or this test shows nothing"
    with adapted.disable_adapter():
        assert relative(_logits_and_reference(adapted, adapted.get_base_model())[0], before) < 5e-5


def test_lora_weights_that_change_between_calls():
    """Weights derived from a layer must not outlive a change of it."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(make("bart"), LoraConfig(target_modules=["k_proj", "v_proj"], r=3)).eval()
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "output_logits": True}

    def first_logits():
        return adapted.generate(input_ids=random_ids(1, LENGTH), return_dict_in_generate=True, **settings).logits[0]

    with Unlimiformer(adapted, window=WINDOW, top_k=9):
        before = first_logits()
        _randomize_lora(adapted, 0.3)
        after = first_logits()
    with Unlimiformer(adapted, window=WINDOW, top_k=9):
        newly_wrapped = first_logits()
    assert torch.equal(after, newly_wrapped)
    assert relative(before, after) > 1e-3


@pytest.mark.parametrize("quantized", ["weights", "weights and activations"])
def test_int8_linear_layers(quantized):
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    model = make("bart")
    plain = _logits_and_reference(model)[0]
    weights_only = quantized == "weights"
    quantize_(model, Int8WeightOnlyConfig() if weights_only else Int8DynamicActivationInt8WeightConfig())
    got, expected = _logits_and_reference(model)
    assert relative(got, plain) > 1e-4, "quantisation must matter here, or this test shows nothing"
    assert relative(got, expected) < (1e-4 if weights_only else 0.03)  # activations are rounded anew on every path


def test_learned_prompts_are_refused():
    from peft import PrefixTuningConfig, get_peft_model

    tuned = get_peft_model(make("bart"), PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=2))
    with pytest.raises(UnsupportedModelError, match="learned prompts"):
        Unlimiformer(tuned)


def test_prompts_inside_attention_are_refused():
    model = make("mvp")
    model.config.use_prompt = True
    with pytest.raises(UnsupportedModelError, match="use_prompt=True"):
        Unlimiformer(model)
