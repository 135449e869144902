"""Model and tokenizer from a catalogue name, a folder or a hub id. The only place that calls `from_pretrained`."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import Any

from ..errors import UnlimiformerError
from ..utils.files import cache_folder
from . import find_model

_ADAPTER = "adapter_config.json"


def load(
    name: str | os.PathLike[str],
    dtype: Any = None,
    device: str | None = None,
    dropout: float | None = None,
    device_map: Any = None,
) -> tuple[Any, Any]:
    """A model and its tokenizer, in evaluation mode; without a `dtype`, in one that is quick.

    `device` is where it will run; it is not moved there. `dropout` replaces all rates that its config has. With a
    `device_map` accelerate spreads the model over several devices, the CPU's memory and the disk ("auto": as it fits).
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    where = str(find_model(str(name)) or name)
    folder = Path(where)
    if (folder / _ADAPTER).is_file():
        return _with_adapter(folder, dtype, device, dropout, device_map)
    looks_local = folder.exists() or where.startswith((".", "/", "~"))
    if looks_local and not (folder / "config.json").exists():
        raise UnlimiformerError(f"{where} has no config.json; give a folder saved with save_pretrained, or a hub id")
    try:
        config = AutoConfig.from_pretrained(where)
        if dropout is not None:
            _set_dropout(config, dropout)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        offload = None if device_map is None else _offload_folder()
        spread = {} if offload is None else {"device_map": device_map, "offload_folder": str(offload)}
        model = kind.from_pretrained(where, config=config, dtype=dtype or _quick_dtype(config, device), **spread)
        if offload is not None:
            weakref.finalize(model, shutil.rmtree, offload, ignore_errors=True)
        tokenizer = AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UnlimiformerError(f"cannot load {where!r}: {reason}") from error
    return model.eval(), tokenizer


def load_on(name: str | os.PathLike[str], device: str | None, dtype: Any = None) -> tuple[Any, Any]:
    """A model, where it will run, and its tokenizer; None leaves it where it is loaded, "auto" spreads it."""
    if device == "auto":
        return load(name, dtype, device_map="auto")
    wanted = None if device is None else usable_device(device)
    model, tokenizer = load(name, dtype, device)
    return model if wanted is None else model.to(wanted), tokenizer


def weight_bytes(name: str) -> int | None:
    """Bytes of a model's files, if they are on this machine."""
    folder = find_model(name) or Path(name)
    if not folder.is_dir():
        from transformers.utils import cached_file

        try:
            folder = Path(str(cached_file(name, "config.json", local_files_only=True))).parent
        except OSError:
            return None
    own = sum(path.stat().st_size for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind))
    base = _adapted(folder)
    return own if base is None else own + (weight_bytes(base) or 0)


def usable_device(name: str) -> Any:
    """The device of this name; an error if nothing can be computed there."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        return device
    except (RuntimeError, AssertionError) as error:
        raise UnlimiformerError(f"device is {name!r} and cannot be used ({error}); try cpu") from None


def quiet_libraries() -> None:
    """Keeps other libraries' notices out of a user's terminal."""
    warnings.filterwarnings("ignore")
    for name in ("torchao", "transformers", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import torch.utils._pytree  # sets up a logger of its own
    from transformers.utils import logging as hf_logging

    logging.getLogger(torch.utils._pytree.__name__).setLevel(logging.ERROR)

    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()


def _set_dropout(config: Any, rate: float) -> None:
    """All rates of a config and of the configs inside it."""
    told = vars(config)
    names = [n for n in (*told, *config.attribute_map) if "drop" in n and "layerdrop" not in n]
    config.update({name: rate for name in names if isinstance(getattr(config, name), int | float)})
    for inner in told.values():
        if hasattr(inner, "attribute_map"):
            _set_dropout(inner, rate)


def _adapted(folder: Path) -> str | None:
    """The model that an adapter was trained for; None of a model, and of an adapter that does not say."""
    path = folder / _ADAPTER
    return json.loads(path.read_text()).get("base_model_name_or_path") if path.is_file() else None


def _offload_folder() -> Path:
    """Where one model's weights are that fit no device."""
    parent = cache_folder() / "offload"
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=parent))


def _with_adapter(
    folder: Path, dtype: Any, device: str | None, dropout: float | None, device_map: Any
) -> tuple[Any, Any]:
    """The model that an adapter of peft was trained for, with the adapter's weights added to its own."""
    try:
        import peft
    except ImportError:
        raise UnlimiformerError(
            f"{folder} is an adapter and needs the package `peft`; install unlimiformer[lora]"
        ) from None
    from transformers import AutoTokenizer

    base = _adapted(folder)
    if not base:
        raise UnlimiformerError(f"{folder} does not say which model it is an adapter of; expected one in {_ADAPTER}")
    model, tokenizer = load(base, dtype, device, dropout, device_map)
    merged = peft.PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    merged.config._name_or_path = str(folder)
    kept = (folder / "tokenizer_config.json").is_file()
    return merged.eval(), AutoTokenizer.from_pretrained(folder) if kept else tokenizer


def _quick_dtype(config: Any, device: str | None) -> Any:
    """The checkpoint's own dtype; float32 on a processor that would have to emulate a half one."""
    import torch

    stored = getattr(config, "dtype", None)
    halves = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    accelerated = torch.accelerator.is_available() if device is None else torch.device(device).type != "cpu"
    if stored not in halves or accelerated or getattr(torch.ops.mkldnn, halves[stored])():
        return "auto"
    return torch.float32
