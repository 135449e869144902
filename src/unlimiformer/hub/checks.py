"""Checks of a model that others made: its files before transformers reads them, and settings that would fail in use.

Errors of the libraries that read a model are turned into one line here; whatever they raise is about its files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import InputError, UnlimiformerError, UnsupportedModelError
from ..utils.jsonl import JSON_ERRORS
from ..utils.optional import require

ADAPTER, CONFIG = "adapter_config.json", "config.json"
GENERATION, TOKENIZER = "generation_config.json", "tokenizer_config.json"
_OBJECTS = (ADAPTER, CONFIG, GENERATION, TOKENIZER, "model.safetensors.index.json", "pytorch_model.bin.index.json")
_EXTRAS = {"torchao": "quantized", "sentencepiece": "models", "sacremoses": "models"}
_LISTED = 5  # names of tensors in a message
_COLOURS = re.compile(r"\x1b?\[[\d;]*m")
_WHOLE = (
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "num_beams", "num_return_sequences", "top_k"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
)
_NUMBERS = (
    *("temperature", "top_p", "min_p", "typical_p", "length_penalty"),
    *("repetition_penalty", "encoder_repetition_penalty"),
)
_TOKENS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"),
)


@contextmanager
def foreign_errors(path: str, part: str) -> Iterator[None]:
    """Turn whatever another library raises into one line; only calls of other libraries belong inside.

    `part`: the file, or what it holds, that the library reads.
    """
    try:
        yield
    except UnlimiformerError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of tokenizers, in Rust
            raise
        if "trust_remote_code" in str(error):
            raise UnsupportedModelError(
                f"{path!r} needs Python code that comes with it, and this library never runs such code; expected a "
                "model of an architecture that transformers has: see `unlimiformer families`"
            ) from None
        if isinstance(error, ImportError):
            _name_extra(path, str(error).lower())
        raise InputError(f"cannot load {path!r}: {_reason(error, part)}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, *JSON_ERRORS) as error:
        raise InputError(f"{path} cannot be read ({error}); expected JSON: get the model again") from None
    if not isinstance(fields, dict):
        raise InputError(f"{path} is no JSON object; expected names and values: get the model again")
    return fields


def check_files(folder: Path) -> None:
    """Raise if a JSON file of a model holds something else: transformers passes over some of them in silence."""
    for name in _OBJECTS:
        if (folder / name).exists():
            read_object(folder / name)


def weights_part(path: str) -> str:
    """What messages call the weights: the names of their files, if these are here."""
    names = sorted(file.name for pattern in ("*.safetensors", "*.bin") for file in Path(path).glob(pattern))
    return f"weights ({', '.join(names[:2])}{', …' if names[2:] else ''})" if names else "weights"


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


def check_generation(path: str, model: Any) -> None:
    """Raise for settings of `generate` whose types would only fail, or mislead, in the middle of an answer."""
    config = getattr(model, "generation_config", None)
    if config is None:
        return
    kinds = [(_WHOLE, _is_whole, "a whole number"), (_NUMBERS, _is_number, "a number")]
    kinds += [(_TOKENS, _is_tokens, "a token id, or a list of them"), (("bad_words_ids",), _is_words, "lists of ids")]
    for names, is_valid, expected in kinds:
        for name in names:
            value = getattr(config, name, None)
            if value is not None and not is_valid(value):
                raise InputError(f"{path}: {GENERATION} or {CONFIG} has {name} {value!r}; expected {expected}")
    starts = (config.decoder_start_token_id, config.bos_token_id)
    if model.config.is_encoder_decoder and starts == (None, None):
        raise InputError(f"{path}: {CONFIG} has no decoder_start_token_id; expected the id that begins every text")


def check_tokenizer(path: str, tokenizer: Any) -> None:
    """Raise for a tokenizer that was loaded, but cannot be used."""
    if not isinstance(tokenizer.model_max_length, int | float):
        raise InputError(f"{path}: {TOKENIZER} has model_max_length {tokenizer.model_max_length!r}; expected a number")
    with foreign_errors(path, "tokenizer"):
        tokenizer.decode(tokenizer("A text.", verbose=False)["input_ids"])


def _reason(error: BaseException, part: str) -> str:
    """What is wrong with a part of a model, in the words of the library that could not read it."""
    text = " ".join(_COLOURS.sub("", str(error)).split())[:300]
    kind = type(error).__name__
    if kind in ("SafetensorError", "UnpicklingError"):
        part = part.rpartition(" or ")[2]  # not the config
    if kind == "UnpicklingError":  # torch's own text advises to trust the file
        return f"its {part} are damaged, or hold more than tensors, which is never read; get safetensors"
    if isinstance(error, OSError | ImportError) and text:
        return text
    return f"its {part} cannot be used ({kind}{': ' if text else ''}{text}); get the model again"


def _name_extra(path: str, text: str) -> None:
    """Raise for a package that an extra of this library brings, if the text of an error names one."""
    for package, extra in _EXTRAS.items():
        if package in text:
            require(package, extra, f"the model {path}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _is_tokens(value: Any) -> bool:
    return all(map(_is_token, value)) if isinstance(value, list | tuple) else _is_token(value)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, list) and all(map(_is_token, word)) for word in value)
