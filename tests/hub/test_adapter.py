"""The adapter of flan-t5-small-answers, and merging it as peft does."""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny_models import make

from unlimiformer.hub.converters.flan_t5_answers import ADAPTER, merge_adapter


def test_merged_weights_equal_those_of_peft(tmp_path):
    torch.manual_seed(0)
    adapted = get_peft_model(make("t5"), LoraConfig("SEQ_2_SEQ_LM", r=3, lora_alpha=7, target_modules=["q", "v", "wo"]))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    adapted.save_pretrained(tmp_path)
    plain = {name: weight.clone() for name, weight in make("t5").state_dict().items()}
    peft_weights = PeftModel.from_pretrained(make("t5"), tmp_path).merge_and_unload().state_dict()
    merged = merge_adapter(plain, tmp_path)
    assert merged.keys() == peft_weights.keys()
    changed = [name for name in merged if not torch.equal(merged[name], plain[name])]
    assert changed and all(name.split(".")[-2] in ("q", "v", "wo") for name in changed)
    for name, expected in peft_weights.items():
        torch.testing.assert_close(merged[name], expected)


def test_adapter_is_small_and_complete():
    assert sum(path.stat().st_size for path in ADAPTER.iterdir()) < 12e6
    assert {"adapter_model.safetensors", "adapter_config.json", "unlimiformer.json", "README.md"} <= {
        path.name for path in ADAPTER.iterdir()
    }
