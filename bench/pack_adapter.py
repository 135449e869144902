"""Copies an adapter that was trained into the package, for the model of the registry after which the folder is named.

Run `python bench/pack_adapter.py build/flan-t5-small-answers` after the training. Weights are rounded to sixteen bits,
which halves their size, and settings of the training alone are left out. The model card is written by hand.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from unlimiformer.hub import MODELS
from unlimiformer.hub.lora_adapter import ADAPTERS, WEIGHTS

SETTINGS, CONFIG = "unlimiformer.json", "adapter_config.json"
CONFIG_KEYS = (
    *("base_model_name_or_path", "layers_to_transform", "lora_alpha", "peft_type", "r"),
    *("target_modules", "task_type"),
)


def main(trained: Path) -> None:
    """Write the adapter and its settings."""
    if trained.name not in MODELS or MODELS[trained.name].adapter is None:
        names = ", ".join(name for name, entry in MODELS.items() if entry.adapter is not None)
        sys.exit(f"{trained} is not named after a model with an adapter; expected a folder called {names}")
    folder = ADAPTERS / trained.name
    folder.mkdir(exist_ok=True)
    weights = {name: weight.to(torch.float16) for name, weight in load_file(trained / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS)
    config = json.loads((trained / CONFIG).read_text())
    packed = {key: sorted(config[key]) if isinstance(config[key], list) else config[key] for key in CONFIG_KEYS}
    (folder / CONFIG).write_text(json.dumps(packed, indent=1) + "\n")
    shutil.copy(trained / SETTINGS, folder / SETTINGS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
