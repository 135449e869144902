"""From options to a wrapped model and its input: fetches what is missing, loads, opens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import DTypeName, UnlimiformerConfig
from ..errors import InputError
from ..hub import MODELS, TEXTS
from .console import messages, progress_bar, quiet_libraries

if TYPE_CHECKING:
    from ..memory import Memory
    from ..model import Unlimiformer
    from ..text.document_text import DocumentText
    from ..text.sources import TextSource


def fetch_model(name: str) -> None:
    """Download a model of the registry if it is not in the cache yet; other names are left to transformers."""
    from .. import hub

    if name in MODELS and not hub.is_cached(name):
        quiet_libraries()
        with progress_bar(f"Downloading {name}", "bytes") as progress:
            hub.get_model(name, messages.print, progress)


def fetch_text(name: str) -> str:
    """The path of a text: of a file, or of a text of the registry, which is downloaded if it is missing."""
    from .. import hub

    if name not in TEXTS or Path(name).exists():
        return name
    with progress_bar(f"Downloading {name}", "bytes") as progress:
        return str(hub.get_text(name, messages.print, progress))


def read_texts(names: str) -> list[str]:
    """The texts of several files or names, separated by commas."""
    return ["".join(iter_input(name)) for name in names.split(",")]


def iter_input(file: str) -> Iterator[str]:
    """What `open_document` opens, in pieces."""
    from ..text.sources import iter_text

    return iter_text(open_document(file))


def open_document(file: str) -> DocumentText | Iterator[str]:
    """The text of a file, a memory, a text of the registry, or of standard input ("-"); plain text in pieces.

    An input without words is refused before anything else happens.
    """
    from ..memory import Memory
    from ..memory.description import is_memory
    from ..memory.remote import is_url
    from ..text.document_text import DocumentText
    from ..text.formats import extract
    from ..text.sources import iter_text, open_file

    if file == "-":
        document: Any = extract(sys.stdin.buffer.read(), "standard input")
    elif is_url(file) or is_memory(file):
        memory = Memory.load(file)
        document = DocumentText(memory.text, memory.locations)
    else:
        document = open_file(Path(fetch_text(file)))
    pieces = iter_text(document)
    beginning = []
    for piece in pieces:
        beginning.append(piece)
        if piece.strip():
            return document if isinstance(document, DocumentText) else chain(beginning, pieces)
    raise InputError(f"{'standard input' if file == '-' else file} is empty; expected a text")


def open_input(file: str) -> Memory | TextSource:
    """The memory at this path, if there is one; otherwise the text."""
    from ..memory import Memory
    from ..memory.description import is_memory
    from ..memory.remote import is_url

    if is_url(file):
        return Memory.load(file)
    folder = Path(file)
    if file != "-" and folder.is_dir() and (is_memory(folder) or (folder / "partial").is_dir()):
        return Memory.load(folder)
    return open_document(file)


def open_wrapped(
    file: str, model: str, settings: dict[str, Any], device: str | None
) -> tuple[Memory | TextSource, Unlimiformer]:
    """The input, and the model wrapped for it; wrong settings are reported before anything is loaded."""
    make_config(settings)
    source = open_input(file)
    from ..memory import Memory

    memory = source if isinstance(source, Memory) else None
    return source, load_wrapped(model, make_config({"compute_dtype": "auto", **settings}, memory), device)


def make_config(settings: dict[str, Any], memory: Memory | None = None) -> UnlimiformerConfig:
    """Settings of the wrapper: what was given, then what the memory was made with, then the defaults."""
    stored = {} if memory is None or memory.spec is None else memory.spec.settings
    return UnlimiformerConfig(**{**stored, **settings})


def load_wrapped(
    name: str, config: UnlimiformerConfig, device: str | None, encoder_dtype: DTypeName | None = None
) -> Unlimiformer:
    """Download a model if it is missing, load it and wrap it.

    `encoder_dtype`: type of an encoder's stored states if the settings leave it open.
    """
    fetch_model(name)
    with messages.status(f"Loading {name}"):
        quiet_libraries()
        from ..hub.loading import load_on
        from ..model import Unlimiformer

        model, tokenizer = load_on(name, device)
        if config.dtype is None and model.config.is_encoder_decoder:
            config = replace(config, dtype=encoder_dtype)
        return Unlimiformer(model, tokenizer, config)
