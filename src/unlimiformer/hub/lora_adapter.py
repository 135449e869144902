"""The LoRA adapters in `hub/lora`, each named after its model: merged into the weights that a package brought."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

ADAPTERS = Path(__file__).parent / "lora"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."


def merge_into_folder(adapter: Path, model: Path) -> None:
    """Merge an adapter into the weights in a model's folder, and copy its card and its saved settings there."""
    from safetensors.torch import load_file, save_file

    weights = model / "model.safetensors"
    save_file(merge(load_file(weights), adapter), weights, {"format": "pt"})
    for path in adapter.iterdir():
        if path.name not in (WEIGHTS, CONFIG):
            shutil.copy(path, model / path.name)


def merge(weights: dict[str, Any], adapter: Path) -> dict[str, Any]:
    """Return weights by name with a LoRA adapter merged: W + (lora_alpha / r) B A for each layer that it has."""
    from safetensors.torch import load_file

    config = json.loads((adapter / CONFIG).read_text())
    scale = config["lora_alpha"] / config["r"]
    matrices = {name.removeprefix(_PREFIX): matrix.float() for name, matrix in load_file(adapter / WEIGHTS).items()}
    merged = dict(weights)
    for name, down in matrices.items():
        layer, is_down, _ = name.partition(".lora_A.")
        if is_down:
            weight, up = weights[f"{layer}.weight"], matrices[f"{layer}.lora_B.weight"]
            merged[f"{layer}.weight"] = (weight.float() + scale * (up @ down)).to(weight.dtype)
    return merged
