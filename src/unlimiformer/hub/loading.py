"""Load a model and its tokenizer from a hub id, a folder or a name of the registry.

The only place that calls `from_pretrained`. It never runs code that comes with a model, and refuses weights that do not
match the model: transformers would fill what is missing with random numbers.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, UnsupportedModelError
from ..utils.files import cache_folder
from ..utils.optional import require
from ..utils.quiet import without_notices
from .cache import find_model
from .checks import (
    ADAPTER,
    CONFIG,
    TOKENIZER,
    check_files,
    check_generation,
    check_loaded,
    check_tokenizer,
    foreign_errors,
    read_object,
    weights_part,
)


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
    if base is not None and not (Path(path) / TOKENIZER).is_file():
        return load_tokenizer(base)
    with without_notices():
        return _load_tokenizer(path)


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
    check_files(folder)
    if (folder / ADAPTER).is_file():
        return _load_with_adapter(folder, options)
    is_local = folder.exists() or path.startswith((".", "/", "~"))
    if is_local and not (folder / CONFIG).exists():
        raise InputError(f"{path} has no config.json; give a folder saved with save_pretrained, or a hub id")
    with without_notices():
        model = _load_model(path, options)
        tokenizer = _load_tokenizer(path)
    return model.eval(), tokenizer


def _load_model(path: str, options: LoadOptions) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    with foreign_errors(path, CONFIG):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    if options.dropout is not None:
        _set_dropout(config, options.dropout)
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    placement: dict[str, Any] = {}
    if options.device_map is not None:
        placement = {"device_map": options.device_map, "offload_folder": str(_make_offload_folder())}
    dtype = options.dtype or _fast_dtype(config, options.device)
    with foreign_errors(path, f"{CONFIG} or {weights_part(path)}"):
        loaded: Any = auto_class.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            **placement,
        )
    model, info = loaded
    if placement:
        weakref.finalize(model, shutil.rmtree, placement["offload_folder"], ignore_errors=True)
    check_loaded(path, info)
    check_generation(path, model)
    return model


def _load_tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    with foreign_errors(path, "tokenizer files"):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    check_tokenizer(path, tokenizer)
    return tokenizer


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
    path = folder / ADAPTER
    if not path.is_file():
        return None
    base = read_object(path).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        return None
    if (Path(find_model(base) or base) / ADAPTER).is_file():
        raise InputError(
            f"{path} names {base} as its model, which is an adapter; expected the model it was trained for"
        )
    return base


def _make_offload_folder() -> Path:
    """A new folder for the weights of one model that fit no device."""
    parent = cache_folder() / "offload"
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=parent))


def _load_with_adapter(folder: Path, options: LoadOptions) -> tuple[Any, Any]:
    """The model that a peft adapter was trained for, with the adapter merged into its weights."""
    peft = require("peft", "lora", f"{folder} is an adapter, which")
    base = _base_of_adapter(folder)
    if not base:
        raise InputError(f"{folder} does not say which model it is an adapter of; expected one in {ADAPTER}")
    if not any((folder / f"adapter_model.{suffix}").is_file() for suffix in ("safetensors", "bin")):
        raise InputError(f"{folder} has no adapter_model.safetensors; give a folder that peft saved")
    try:
        model, tokenizer = _load(str(find_model(base) or base), options)
    except InputError as error:
        raise InputError(f"{folder} is an adapter of {base}: {error}") from None
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        with foreign_errors(str(folder), f"{ADAPTER} or {weights_part(str(folder))}"):
            merged = peft.PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
        for notice in notices:
            if "adapter keys" in str(notice.message):
                reason = " ".join(str(notice.message).split())[:200]
                raise UnsupportedModelError(f"the adapter {folder} does not match the model {base}: {reason}")
        merged.config._name_or_path = str(folder)
        if (folder / TOKENIZER).is_file():
            tokenizer = _load_tokenizer(str(folder))
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
