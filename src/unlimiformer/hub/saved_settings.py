"""How a model wants to be used, kept beside its weights: settings and how it is asked in `unlimiformer.json`, and a
gate where one was learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from ..config import UnlimiformerConfig
from ..errors import UnlimiformerError

FILE = "unlimiformer.json"
GATE = "memory_gate"


def load_saved_settings(folder: str | Path) -> dict[str, dict[str, Any]]:
    """What the folder of a model says: `settings` and `asking`, by name; nothing where it has no such file."""
    path = Path(folder) / FILE
    if not path.is_file():
        return {}
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        unknown = set(told["settings"]) - set(UnlimiformerConfig.names())
    except (ValueError, KeyError, TypeError):
        raise UnlimiformerError(f"{path} cannot be read; expected what training wrote there, or no such file") from None
    if unknown:
        raise UnlimiformerError(f"{path} has the setting {min(unknown)}, which this version does not know: update it")
    return told


def completed(config: UnlimiformerConfig, folder: str | None) -> UnlimiformerConfig:
    """The settings, with those of the model's folder, if it has one, where they leave something open."""
    if not folder:
        return config
    kept = load_saved_settings(folder).get("settings", {})
    return replace(config, **{name: value for name, value in kept.items() if getattr(config, name) is None})


def load_gate(folder: str | None, layer: int, heads: int) -> Tensor | None:
    """How far each head (H,) of this layer trusts what it retrieved; None where no gate was learned for it."""
    path = Path(folder or "") / f"{GATE}.safetensors"
    if not folder or not path.is_file():
        return None
    gate = load_file(path).get(_gate_of(layer))
    if gate is not None and gate.shape != (heads,):
        raise UnlimiformerError(
            f"{path} has a gate of {gate.numel()} heads, and layer {layer} of the model has {heads}; expected the gate "
            "that was trained with the model: remove the file if it is another's"
        )
    return gate


def save_gate(gate: Tensor, layer: int, folder: Path) -> None:
    """Beside the model that it belongs to."""
    save_file({_gate_of(layer): gate.detach().cpu()}, folder / f"{GATE}.safetensors")


def _gate_of(layer: int) -> str:
    return f"{GATE}.{layer}"


def usage_text(settings: dict[str, Any], asking: dict[str, Any]) -> str:
    """What the file holds."""
    return json.dumps({"settings": settings, "asking": asking}, indent=1) + "\n"
