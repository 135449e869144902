"""Copies a trained adapter into the package as the default model.

Run `python bench/pack_default_model.py build/default-model` after the training. Weights are rounded to float16, which
halves their size, and settings of the training alone are left out. The packed model retrieves more tokens than in
training, which helps summaries and does not hurt facts, and it uses `focus`, which training did not: docs/LOG.md has
the measurements.
"""

import json
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from unlimiformer.hub.lora_adapter import ADAPTERS

WEIGHTS, SETTINGS, CONFIG = "adapter_model.safetensors", "unlimiformer.json", "adapter_config.json"
CONFIG_KEYS = ("base_model_name_or_path", "lora_alpha", "peft_type", "r", "target_modules", "task_type")
TOP_K, FOCUS = 256, 1024


def main(trained: Path, folder: Path = ADAPTERS / "flan-t5-small-answers") -> None:
    """Write the adapter and its settings; the model card is written by hand."""
    save_file({name: weight.half() for name, weight in load_file(trained / WEIGHTS).items()}, folder / WEIGHTS)
    config = json.loads((trained / CONFIG).read_text())
    packed = {key: sorted(config[key]) if isinstance(config[key], list) else config[key] for key in CONFIG_KEYS}
    (folder / CONFIG).write_text(json.dumps(packed, indent=1) + "\n")
    settings = json.loads((trained / SETTINGS).read_text())
    settings["settings"] |= {"top_k": TOP_K, "focus": FOCUS}
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
