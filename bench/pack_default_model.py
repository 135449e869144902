"""A trained adapter as the package keeps it: `python bench/pack_default_model.py build/default-model`.

Weights are rounded to float16, which halves them; what concerns the training alone is left out. Tests see more tokens
than training did: summaries want them, and facts do not suffer; and they look twice, which training did not
(docs/LOG.md).
"""

import json
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from unlimiformer.hub.converters.flan_t5_answers import ADAPTER

FILE, USAGE, CONFIG = "adapter_model.safetensors", "unlimiformer.json", "adapter_config.json"
WANTED = ("base_model_name_or_path", "lora_alpha", "peft_type", "r", "target_modules", "task_type")
TOP_K, FOCUS = 256, 1024


def main(trained: Path, folder: Path = ADAPTER) -> None:
    """Writes the adapter and its usage; the model card is written by hand."""
    save_file({name: weight.half() for name, weight in load_file(trained / FILE).items()}, folder / FILE)
    told = json.loads((trained / CONFIG).read_text())
    kept = {key: sorted(told[key]) if isinstance(told[key], list) else told[key] for key in WANTED}
    (folder / CONFIG).write_text(json.dumps(kept, indent=1) + "\n")
    usage = json.loads((trained / USAGE).read_text())
    usage["settings"] |= {"top_k": TOP_K, "focus": FOCUS}
    (folder / USAGE).write_text(json.dumps(usage, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
