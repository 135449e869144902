"""flan-t5-small with this package's own adapter, which answers questions over long documents (answers/README.md)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from . import flan_t5

ADAPTER = Path(__file__).parent.parent / "answers"
_FILE, _PREFIX = "adapter_model.safetensors", "base_model.model."


def convert(source: Path, out: Path) -> None:
    """The model as its package has it, with the adapter's weights added; its card and its usage beside it."""
    from safetensors.torch import load_file, save_file

    flan_t5.convert(source, out)
    weights = out / "model.safetensors"
    save_file(with_adapter(load_file(weights), ADAPTER), weights, {"format": "pt"})
    for name in ("README.md", "unlimiformer.json"):
        shutil.copy(ADAPTER / name, out / name)


def with_adapter(weights: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Weights by name, to which the product of an adapter's two matrices is added wherever it has them."""
    from safetensors.torch import load_file

    told = json.loads((folder / "adapter_config.json").read_text())
    scale = told["lora_alpha"] / told["r"]
    adapter = {name.removeprefix(_PREFIX): matrix.float() for name, matrix in load_file(folder / _FILE).items()}
    changed = dict(weights)
    for name, down in adapter.items():
        layer, found, _ = name.partition(".lora_A.")
        if found:
            up = adapter[f"{layer}.lora_B.weight"]
            changed[f"{layer}.weight"] = weights[f"{layer}.weight"] + scale * (up @ down)
    return changed
