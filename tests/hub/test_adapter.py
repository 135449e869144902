"""The adapters in the package, and merging them as peft does."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny_models import make

from unlimiformer.errors import InputError
from unlimiformer.hub import MODELS
from unlimiformer.hub.lora_adapter import ADAPTERS, merge


def test_merged_weights_equal_those_of_peft(tmp_path):
    torch.manual_seed(0)
    adapted = get_peft_model(make("t5"), LoraConfig("SEQ_2_SEQ_LM", r=3, lora_alpha=7, target_modules=["q", "v", "wo"]))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    adapted.save_pretrained(tmp_path)
    plain = {name: weight.clone() for name, weight in make("t5").state_dict().items()}
    peft_weights = PeftModel.from_pretrained(make("t5"), tmp_path).merge_and_unload().state_dict()
    merged = merge(plain, tmp_path)
    assert merged.keys() == peft_weights.keys()
    changed = [name for name in merged if not torch.equal(merged[name], plain[name])]
    assert changed and all(name.split(".")[-2] in ("q", "v", "wo") for name in changed)
    for name, expected in peft_weights.items():
        torch.testing.assert_close(merged[name], expected)


def test_an_adapter_of_another_model_is_not_merged_in_part(tmp_path):
    get_peft_model(make("t5"), LoraConfig("SEQ_2_SEQ_LM", r=2, target_modules=["q"])).save_pretrained(tmp_path)
    weights = make("t5").state_dict()
    missing = next(name for name in weights if name.endswith(".q.weight"))
    with pytest.raises(InputError, match=f"changes {missing}, which the model does not have"):
        merge({name: weight for name, weight in weights.items() if name != missing}, tmp_path)


def test_merged_weights_keep_their_type(tmp_path):
    model = make("t5").to(torch.bfloat16)
    get_peft_model(model, LoraConfig("SEQ_2_SEQ_LM", r=2, target_modules=["q"])).save_pretrained(tmp_path)
    merged = merge(make("t5").to(torch.bfloat16).state_dict(), tmp_path)
    assert {weight.dtype for weight in merged.values()} == {torch.bfloat16}


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if entry.adapter])
def test_adapters_are_small_and_complete(name):
    folder = ADAPTERS / name
    assert sum(path.stat().st_size for path in folder.iterdir()) < 12e6
    assert {"adapter_model.safetensors", "adapter_config.json", "unlimiformer.json", "README.md"} <= {
        path.name for path in folder.iterdir()
    }


def test_every_adapter_belongs_to_a_model():
    assert {folder.name for folder in ADAPTERS.iterdir()} == {name for name, entry in MODELS.items() if entry.adapter}
