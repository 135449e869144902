"""A trained adapter as the package keeps it: `python bench/pack_default_model.py build/default-model`.

Weights are rounded to float16, which halves them; what concerns the training alone is left out.
"""

import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from unlimiformer.catalogue.flan_t5_answers import ADAPTER

WANTED = ("base_model_name_or_path", "lora_alpha", "peft_type", "r", "target_modules", "task_type")


def main(trained: Path, folder: Path = ADAPTER) -> None:
    """Writes the adapter and its usage; the model card is written by hand."""
    name = "adapter_model.safetensors"
    save_file({key: weight.half() for key, weight in load_file(trained / name).items()}, folder / name)
    told = json.loads((trained / "adapter_config.json").read_text())
    kept = {key: sorted(told[key]) if isinstance(told[key], list) else told[key] for key in WANTED}
    (folder / "adapter_config.json").write_text(json.dumps(kept, indent=1) + "\n")
    shutil.copy(trained / "unlimiformer.json", folder / "unlimiformer.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
