"""Adapters that were trained one after the other, as the one that the package keeps.

`python bench/pack_default_model.py build/default-model/first build/default-model/second`: ranks add up, weights are
rounded to float16, and what concerns the training alone is left out.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from unlimiformer.catalogue.flan_t5_answers import ADAPTER

WANTED = ("peft_type", "target_modules", "task_type")
FILE = "adapter_model.safetensors"


def main(*trained: Path, folder: Path = ADAPTER) -> None:
    """Writes the adapter and its usage; the model card is written by hand."""
    told = [json.loads((each / "adapter_config.json").read_text()) for each in trained]
    scales = {each["lora_alpha"] / each["r"] for each in told}
    if len(scales) > 1:
        raise SystemExit(f"the adapters have the scales {scales}; expected one")
    weights = [load_file(each / FILE) for each in trained]
    joined = {
        name: torch.cat([each[name] for each in weights], dim=0 if ".lora_A." in name else 1).half().contiguous()
        for name in weights[0]
    }
    save_file(joined, folder / FILE)
    rank = sum(each["r"] for each in told)
    kept = {"base_model_name_or_path": told[0]["base_model_name_or_path"], "r": rank, "lora_alpha": rank * scales.pop()}
    kept |= {key: sorted(told[0][key]) if isinstance(told[0][key], list) else told[0][key] for key in WANTED}
    (folder / "adapter_config.json").write_text(json.dumps(kept, indent=1) + "\n")
    shutil.copy(trained[-1] / "unlimiformer.json", folder / "unlimiformer.json")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
