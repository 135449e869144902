"""The package's own adapter: merged as peft would merge it."""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny_models import make

from unlimiformer.hub.converters.flan_t5_answers import ADAPTER, with_adapter


def test_merging_equals_that_of_peft(tmp_path):
    torch.manual_seed(0)
    adapted = get_peft_model(make("t5"), LoraConfig("SEQ_2_SEQ_LM", r=3, lora_alpha=7, target_modules=["q", "v", "wo"]))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    adapted.save_pretrained(tmp_path)
    plain = {name: weight.clone() for name, weight in make("t5").state_dict().items()}
    merged = PeftModel.from_pretrained(make("t5"), tmp_path).merge_and_unload().state_dict()
    got = with_adapter(plain, tmp_path)
    assert got.keys() == merged.keys()
    changed = [name for name in got if not torch.equal(got[name], plain[name])]
    assert changed and all(name.split(".")[-2] in ("q", "v", "wo") for name in changed)
    for name, weight in merged.items():
        torch.testing.assert_close(got[name], weight)


def test_the_adapter_is_light_and_has_its_card():
    assert sum(path.stat().st_size for path in ADAPTER.iterdir()) < 12e6
    assert {"adapter_model.safetensors", "adapter_config.json", "unlimiformer.json", "README.md"} <= {
        path.name for path in ADAPTER.iterdir()
    }
