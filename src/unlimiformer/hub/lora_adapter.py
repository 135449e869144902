"""LoRA adapters that were trained here (`hub/lora`, each named after its model), as peft stores them.

The adapter of an encoder–decoder is merged into its weights. That of a decoder-only model is for questions about facts
alone: it is stored in a folder of its own beside the weights, which stay as they were.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from .checks import ADAPTER, foreign_errors, read_object

ADAPTERS = Path(__file__).parent / "lora"
SHORT_ANSWERS = "short_answers"
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."


@dataclass(frozen=True)
class LowRankChange:
    """What an adapter adds to a linear layer (out, in): scale × up (out, r) × down (r, in)."""

    layer: str
    down: Any
    up: Any
    scale: float

    def merge(self, weight: Any) -> Any:
        """The weight with the change added."""
        return (weight.float() + self.scale * (self.up @ self.down)).to(weight.dtype)


def merge_into_folder(adapter: Path, model: Path) -> None:
    """Merge an adapter into the weights in a model's folder, and copy its card and its saved settings there."""
    from safetensors.torch import load_file, save_file

    weights = model / "model.safetensors"
    save_file(merge(load_file(weights), adapter), weights, {"format": "pt"})
    _copy(adapter, model, lambda name: name not in (WEIGHTS, ADAPTER))


def add_to_folder(adapter: Path, model: Path) -> None:
    """Put an adapter for questions about facts into a model's folder, with its card and its saved settings."""
    _copy(adapter, model, lambda name: name not in (WEIGHTS, ADAPTER))
    (model / SHORT_ANSWERS).mkdir()
    _copy(adapter, model / SHORT_ANSWERS, lambda name: name in (WEIGHTS, ADAPTER))


def merge(weights: dict[str, Any], adapter: Path) -> dict[str, Any]:
    """Return weights by name with an adapter merged."""
    changes = {f"{change.layer}.weight": change for change in read_changes(adapter)}
    if missing := changes.keys() - weights.keys():
        raise InputError(f"the adapter {adapter} changes {min(missing)}, which the model does not have")
    return {name: changes[name].merge(weight) if name in changes else weight for name, weight in weights.items()}


def read_changes(adapter: Path) -> list[LowRankChange]:
    """Read an adapter: its change of each layer, with the layers' names in the model."""
    from safetensors.torch import load_file

    config = read_object(adapter / ADAPTER)
    with foreign_errors(str(adapter), f"weights ({WEIGHTS})"):
        matrices = {name.removeprefix(_PREFIX): matrix.float() for name, matrix in load_file(adapter / WEIGHTS).items()}
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise InputError(f"{adapter / ADAPTER} has r {rank!r} and lora_alpha {alpha!r}; expected numbers above 0")
    changes = []
    for name, down in matrices.items():
        layer, is_down, _ = name.partition(".lora_A.")
        up = matrices.get(f"{layer}.lora_B.weight")
        if is_down and (up is None or down.ndim != 2 or up.ndim != 2 or not down.shape[0] == up.shape[1] == rank):
            raise InputError(
                f"{adapter / WEIGHTS} has no matrices of rank {rank} for {layer}; expected lora_A and lora_B: get the "
                "model again"
            )
        if is_down:
            changes.append(LowRankChange(layer, down, up, alpha / rank))
    if not changes or len(matrices) != 2 * len(changes):
        raise InputError(f"{adapter / WEIGHTS} is no LoRA adapter; expected lora_A and lora_B of each layer")
    return changes


def short_answers_folder(model: Any) -> Path | None:
    """The folder, in that of a model, with an adapter for questions about facts; None if there is none."""
    name = getattr(model.config, "_name_or_path", None)
    folder = Path(name) / SHORT_ANSWERS if name else None
    return folder if folder is not None and folder.is_dir() else None


def _copy(source: Path, target: Path, is_wanted: Any) -> None:
    for path in source.iterdir():
        if is_wanted(path.name):
            shutil.copy(path, target / path.name)
