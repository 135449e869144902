"""Load a model and its tokenizer from a hub id, a folder or a name of the registry.

The only place that calls `from_pretrained`. It never runs code that comes with a model, and refuses weights that do not
match the model: transformers would fill what is missing with random numbers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, UnlimiformerError, UnsupportedModelError
from ..utils.files import cache_folder
from ..utils.optional import require
from ..utils.quiet import without_notices
from .cache import find_model

_ADAPTER = "adapter_config.json"
_LISTED = 5  # names of tensors in a message


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded.

    Parameters
    ----------
    dtype : of the weights; None chooses one that is fast on this machine.
    device : where the model will run; it only decides the dtype, the model is not moved.
    dropout : replaces all dropout rates of the config.
    device_map : as in transformers; "auto" spreads the model over devices, CPU memory and disk (accelerate).
    """

    dtype: Any = None
    device: str | None = None
    dropout: float | None = None
    device_map: Any = None


def load(
    name: str | os.PathLike[str],
    dtype: Any = None,
    device: str | None = None,
    dropout: float | None = None,
    device_map: Any = None,
) -> tuple[Any, Any]:
    """Load a model, in evaluation mode, and its tokenizer; the parameters are those of `LoadOptions`."""
    return _load(str(find_model(str(name)) or name), LoadOptions(dtype, device, dropout, device_map))


def load_tokenizer(name: str | os.PathLike[str]) -> Any:
    """Load the tokenizer of a model without its weights; an adapter that has none uses its model's."""
    path = str(find_model(str(name)) or name)
    base = _base_of_adapter(Path(path))
    if base is not None and not (Path(path) / "tokenizer_config.json").is_file():
        return load_tokenizer(base)
    with _clear_errors(path), without_notices():
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)


def load_on(name: str | os.PathLike[str], device: str | None, dtype: Any = None) -> tuple[Any, Any]:
    """Load a model and its tokenizer, and move the model; None leaves it in place, "auto" spreads it."""
    if device == "auto":
        return load(name, dtype, device_map="auto")
    target = None if device is None else usable_device(device)
    model, tokenizer = load(name, dtype, device)
    return model if target is None else model.to(target), tokenizer


def weight_bytes(name: str) -> int | None:
    """Size of a model's weight files; None if they are not on this machine."""
    folder = find_model(name) or Path(name)
    if not folder.is_dir():
        from transformers.utils import cached_file

        try:
            folder = Path(str(cached_file(name, "config.json", local_files_only=True))).parent
        except OSError:
            return None
    size = sum(path.stat().st_size for pattern in ("*.safetensors", "*.bin") for path in folder.glob(pattern))
    base = _base_of_adapter(folder)
    return size if base is None else size + (weight_bytes(base) or 0)


def usable_device(name: str) -> Any:
    """The device of this name; raises if nothing can be computed there."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        return device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device is {name!r} and cannot be used ({error}); try cpu") from None


def _load(path: str, options: LoadOptions) -> tuple[Any, Any]:
    folder = Path(path)
    if (folder / _ADAPTER).is_file():
        return _load_with_adapter(folder, options)
    is_local = folder.exists() or path.startswith((".", "/", "~"))
    if is_local and not (folder / "config.json").exists():
        raise InputError(f"{path} has no config.json; give a folder saved with save_pretrained, or a hub id")
    with _clear_errors(path), without_notices():
        from transformers import AutoTokenizer

        model = _load_model(path, options)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    return model.eval(), tokenizer


def _load_model(path: str, options: LoadOptions) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    if options.dropout is not None:
        _set_dropout(config, options.dropout)
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    placement: dict[str, Any] = {}
    if options.device_map is not None:
        placement = {"device_map": options.device_map, "offload_folder": str(_make_offload_folder())}
    loaded: Any = auto_class.from_pretrained(
        path,
        config=config,
        dtype=options.dtype or _fast_dtype(config, options.device),
        trust_remote_code=False,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # refused below, by name
        **placement,
    )
    model, info = loaded
    if placement:
        weakref.finalize(model, shutil.rmtree, placement["offload_folder"], ignore_errors=True)
    check_loaded(path, info)
    return model


def check_loaded(path: str, info: dict[str, Any]) -> None:
    """Raise unless every tensor of the model came from the checkpoint, and every tensor of it was used.

    transformers leaves out of `info` what it ties to another tensor or computes itself; a gate that training added to a
    layer is stored a second time in a file of its own (`saved_settings`).
    """
    from .saved_settings import GATE

    unexpected = [name for name in info.get("unexpected_keys") or () if name.rpartition(".")[2] != GATE]
    problems = {
        "missing": info.get("missing_keys"),
        "unexpected": unexpected,
        "of another shape": [entry[0] for entry in info.get("mismatched_keys") or ()],
    }
    for problem, names in problems.items():
        if names:
            listed = ", ".join(sorted(names)[:_LISTED]) + (", …" if len(names) > _LISTED else "")
            raise UnsupportedModelError(
                f"the checkpoint {path} does not match its config.json: {len(names)} tensors are {problem} ({listed}); "
                "expected every tensor of the model: get a complete checkpoint, or the config that belongs to it"
            )


@contextmanager
def _clear_errors(path: str) -> Iterator[None]:
    """Turn errors of transformers into one line."""
    try:
        yield
    except UnlimiformerError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if "trust_remote_code" in str(error):
            raise UnsupportedModelError(
                f"{path!r} needs Python code that comes with it, and this library never runs such code; expected a "
                "model of an architecture that transformers has: see `unlimiformer families`"
            ) from None
        if not isinstance(error, OSError | ValueError | ImportError | RuntimeError | KeyError | TypeError):
            raise
        raise InputError(f"cannot load {path!r}: {reason}") from error


def _set_dropout(config: Any, rate: float) -> None:
    """Replace all dropout rates of a config and of the configs inside it."""
    attributes = vars(config)
    names = [n for n in (*attributes, *config.attribute_map) if "drop" in n and "layerdrop" not in n]
    config.update({name: rate for name in names if isinstance(getattr(config, name), int | float)})
    for value in attributes.values():
        if hasattr(value, "attribute_map"):
            _set_dropout(value, rate)


def _base_of_adapter(folder: Path) -> str | None:
    """The model that an adapter was trained for; None for a folder that is no adapter or does not say."""
    path = folder / _ADAPTER
    if not path.is_file():
        return None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        base = fields.get("base_model_name_or_path")
    except (ValueError, AttributeError, RecursionError):
        raise InputError(f"{path} cannot be read; expected the JSON that peft writes") from None
    return base if isinstance(base, str) else None


def _make_offload_folder() -> Path:
    """A new folder for the weights of one model that fit no device."""
    parent = cache_folder() / "offload"
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=parent))


def _load_with_adapter(folder: Path, options: LoadOptions) -> tuple[Any, Any]:
    """The model that a peft adapter was trained for, with the adapter merged into its weights."""
    peft = require("peft", "lora", f"{folder} is an adapter, which")
    from transformers import AutoTokenizer

    base = _base_of_adapter(folder)
    if not base:
        raise InputError(f"{folder} does not say which model it is an adapter of; expected one in {_ADAPTER}")
    model, tokenizer = _load(str(find_model(base) or base), options)
    with _clear_errors(str(folder)), warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        merged = peft.PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
        for notice in notices:
            if "adapter keys" in str(notice.message):
                reason = " ".join(str(notice.message).split())[:200]
                raise UnsupportedModelError(f"the adapter {folder} does not match the model {base}: {reason}")
        merged.config._name_or_path = str(folder)
        if (folder / "tokenizer_config.json").is_file():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return merged.eval(), tokenizer


def _fast_dtype(config: Any, device: str | None) -> Any:
    """The checkpoint's own dtype, or float32 on a processor that would have to emulate a half one."""
    import torch

    stored = getattr(config, "dtype", None)
    probes = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    on_accelerator = torch.accelerator.is_available() if device is None else torch.device(device).type != "cpu"
    if stored not in probes or on_accelerator or getattr(torch.ops.mkldnn, probes[stored])():
        return "auto"
    return torch.float32
