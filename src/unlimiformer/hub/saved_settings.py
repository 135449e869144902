"""Saved settings: files in a model's folder that say how the model is to be used.

`unlimiformer.json` holds defaults for `UnlimiformerConfig` (key `settings`) and the format of questions (key `asking`).
`memory_gate.safetensors` holds the gate between local and retrieved attention, if one was trained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..config import UnlimiformerConfig
from ..errors import InputError, UnlimiformerError
from ..utils.jsonl import JSON_ERRORS

FILE = "unlimiformer.json"
GATE = "memory_gate"
_SECTIONS = ("settings", "asking")
_QUESTION_FORMAT_KEYS = ("place", "form", "summary_prompt")
_TEXT_SETTINGS = {"prefix": str | list, "device": str}  # whose types UnlimiformerConfig does not check


def load_saved_settings(folder: str | Path) -> dict[str, dict[str, Any]]:
    """Read and validate `unlimiformer.json` in a model's folder; return an empty dict if there is no such file."""
    path = Path(folder) / FILE
    if not path.exists():
        return {}
    try:
        sections = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, *JSON_ERRORS) as error:
        raise InputError(f"{path} cannot be read ({error}); expected what training wrote, or no file") from None
    if not isinstance(sections, dict):
        raise InputError(f"{path} cannot be read: expected a JSON object with the keys {' and '.join(_SECTIONS)}")
    if unknown := set(sections) - set(_SECTIONS):
        raise InputError(f"{path} has the key {min(unknown)}; expected only {' and '.join(_SECTIONS)}")
    if "settings" not in sections:
        raise InputError(f"{path} has no key settings; expected what training wrote, or no file")
    for key, section in sections.items():
        if not isinstance(section, dict):
            raise InputError(f"{path}: {key} is {section!r}; expected a JSON object")
    _check_settings(sections["settings"], path)
    _check_question_format(sections.get("asking", {}), path)
    return sections


def with_defaults(config: UnlimiformerConfig, folder: str | None) -> UnlimiformerConfig:
    """Fill settings that are None or "auto" with those saved in the model's folder, if there is one."""
    if not folder:
        return config
    saved = load_saved_settings(folder).get("settings", {}).items()
    used = {name: value for name, value in saved if value is not None and getattr(config, name) in (None, "auto")}
    return replace(config, **used)


def saved_settings_text(settings: dict[str, Any], asking: dict[str, Any]) -> str:
    """Serialize settings and question format as the content of `unlimiformer.json`."""
    return json.dumps({"settings": settings, "asking": asking}, indent=1) + "\n"


def load_gates(folder: str | None, heads: Sequence[int]) -> list[Tensor | None]:
    """Load the gate logits (H,) of every layer from a model's folder; None for layers for which none were trained.

    `heads`: number of heads of each layer.
    """
    path = Path(folder or "") / f"{GATE}.safetensors"
    if not folder or not path.exists():
        return [None] * len(heads)
    try:
        gates = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); copy it again from the trained model") from None
    if unknown := set(gates) - {_gate_key(layer) for layer in range(len(heads))}:
        raise InputError(
            f"{path} has {min(unknown)!r}, and the model has {len(heads)} layers; expected the gates that were trained "
            "with this model: remove the file if it belongs to another"
        )
    for layer, count in enumerate(heads):
        _check_gate(gates.get(_gate_key(layer)), layer, count, path)
    return [gates.get(_gate_key(layer)) for layer in range(len(heads))]


def save_gate(gate: Tensor, layer: int, folder: Path) -> None:
    """Save the gate logits (H,) of one layer in a model's folder."""
    save_file({_gate_key(layer): gate.detach().cpu()}, folder / f"{GATE}.safetensors")


def _gate_key(layer: int) -> str:
    return f"{GATE}.{layer}"


def _check_gate(gate: Tensor | None, layer: int, heads: int, path: Path) -> None:
    if gate is None:
        return
    if gate.shape != (heads,):
        raise InputError(
            f"{path} has a gate of {gate.numel()} heads, and layer {layer} of the model has {heads}; expected the gate "
            "that was trained with this model: remove the file if it belongs to another"
        )
    if not gate.is_floating_point() or not gate.isfinite().all():
        raise InputError(f"{path}: the gate of layer {layer} is no finite number for each head; train it again")


def _check_settings(settings: dict[str, Any], path: Path) -> None:
    if unknown := set(settings) - set(UnlimiformerConfig.names()):
        raise InputError(f"{path} has the setting {min(unknown)}, which this version does not know: update it")
    for name, value in settings.items():
        if value is None:  # not set
            continue
        if name in _TEXT_SETTINGS and not _is_text(value, _TEXT_SETTINGS[name]):
            raise InputError(f"{path}: {name} is {value!r}; expected a text")
        try:
            UnlimiformerConfig(**{name: value})
        except UnlimiformerError as error:
            raise InputError(f"{path}: {error}") from None
        except TypeError:
            raise InputError(f"{path}: {name} is {value!r}; expected a value of another type") from None


def _is_text(value: Any, kinds: Any) -> bool:
    """Whether a value is of these kinds, and a list has texts only."""
    return isinstance(value, kinds) and all(isinstance(part, str) for part in value)


def _check_question_format(fields: dict[str, Any], path: Path) -> None:
    if unknown := set(fields) - set(_QUESTION_FORMAT_KEYS):
        raise InputError(f"{path} has the key asking.{min(unknown)}; expected only {', '.join(_QUESTION_FORMAT_KEYS)}")
    for key, value in fields.items():
        if not isinstance(value, str) and not (key == "summary_prompt" and value is None):
            raise InputError(f"{path}: asking.{key} is {value!r}; expected a text")
