"""Settings that a model's folder carries: defaults for the config, and errors that name the file and the key."""

from __future__ import annotations

import json
import re

import pytest
import torch

from unlimiformer import UnlimiformerConfig
from unlimiformer.errors import InputError
from unlimiformer.hub.lora_adapter import ADAPTERS
from unlimiformer.hub.saved_settings import (
    FILE,
    GATE,
    load_gates,
    load_saved_settings,
    save_gate,
    saved_settings_text,
    with_defaults,
)


def test_saved_settings_fill_what_the_config_leaves_open(tmp_path):
    settings = {"window": 64, "top_k": 8, "layers": [1, 2], "overlap": None}
    (tmp_path / FILE).write_text(saved_settings_text(settings, {"place": "decoder"}))
    assert load_saved_settings(tmp_path) == {"settings": settings, "asking": {"place": "decoder"}}
    config = with_defaults(UnlimiformerConfig(top_k=3), str(tmp_path))
    assert config == UnlimiformerConfig(window=64, top_k=3, layers=(1, 2))


def test_folder_without_saved_settings(tmp_path):
    config = UnlimiformerConfig(top_k=3)
    assert load_saved_settings(tmp_path) == {}
    assert with_defaults(config, str(tmp_path)) == with_defaults(config, None) == config
    assert load_gates(str(tmp_path), [4]) == load_gates(None, [4]) == [None]


def test_settings_of_the_default_model_are_valid():
    assert load_saved_settings(ADAPTERS / "flan-t5-small-answers")["settings"]["window"] == 512


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read: expected a JSON object with the keys settings and asking"),
        ("{}", "has no key settings"),
        ('{"settings": {}, "colour": 1}', "has the key colour"),
        ('{"settings": 5}', ": settings is 5; expected a JSON object"),
        ('{"settings": {}, "asking": "how"}', ": asking is 'how'; expected a JSON object"),
        ('{"settings": {"colour": 1}}', "has the setting colour"),
        ('{"settings": {"window": "512"}}', ": window is '512'; expected a whole number"),
        ('{"settings": {"layers": 1.5}}', ": layers is 1.5; expected"),
        ('{"settings": {"overlap": 2}}', ": overlap is 2; expected"),
        ('{"settings": {"store": ["exact"]}}', ": store is ['exact']; expected one of"),
        ('{"settings": {"prefix": 7}}', ": prefix is 7; expected a text"),
        ('{"settings": {"device": 0}}', ": device is 0; expected a text"),
        ('{"settings": {}, "asking": {"colour": "red"}}', "has the key asking.colour"),
        ('{"settings": {}, "asking": {"form": 3}}', ": asking.form is 3; expected a text"),
    ],
)
def test_errors_name_the_file_and_the_key(tmp_path, content, message):
    path = tmp_path / FILE
    path.write_text(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}.*{re.escape(message)}"):
        load_saved_settings(tmp_path)


def test_gate_is_saved_per_layer(tmp_path):
    save_gate(torch.tensor([1.0, 2.0]), 3, tmp_path)
    gates = load_gates(str(tmp_path), [2, 2, 2, 2])
    assert gates[:3] == [None] * 3 and torch.equal(gates[3], torch.tensor([1.0, 2.0]))
    with pytest.raises(InputError, match="gate of 2 heads, and layer 3 of the model has 5"):
        load_gates(str(tmp_path), [5] * 4)
    with pytest.raises(InputError, match=r"has 'memory_gate\.3', and the model has 3 layers"):
        load_gates(str(tmp_path), [2] * 3)
    (tmp_path / f"{GATE}.safetensors").write_bytes(json.dumps({}).encode())
    with pytest.raises(InputError, match=f"{GATE}.safetensors cannot be read"):
        load_gates(str(tmp_path), [2] * 4)
