"""Converter of flan-t5-small-answers: flan-t5-small with the adapter in `hub/answers` merged into its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from . import flan_t5

ADAPTER = Path(__file__).parent.parent / "answers"
_FILE, _PREFIX = "adapter_model.safetensors", "base_model.model."


def convert(source: Path, out: Path) -> None:
    """Convert flan-t5-small, merge the adapter, and copy the model card and the saved settings."""
    from safetensors.torch import load_file, save_file

    flan_t5.convert(source, out)
    weights = out / "model.safetensors"
    save_file(merge_adapter(load_file(weights), ADAPTER), weights, {"format": "pt"})
    for name in ("README.md", "unlimiformer.json"):
        shutil.copy(ADAPTER / name, out / name)


def merge_adapter(weights: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return weights by name with a LoRA adapter merged: W + (lora_alpha / r) B A for each layer that it has."""
    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    adapter = {name.removeprefix(_PREFIX): matrix.float() for name, matrix in load_file(folder / _FILE).items()}
    merged = dict(weights)
    for name, down in adapter.items():
        layer, is_down, _ = name.partition(".lora_A.")
        if is_down:
            up = adapter[f"{layer}.lora_B.weight"]
            merged[f"{layer}.weight"] = weights[f"{layer}.weight"] + scale * (up @ down)
    return merged
