"""Options that several commands share, and how they become a wrapped model and its input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import DTypeName, UnlimiformerConfig
from ..errors import UnlimiformerError
from .console import input_pieces, messages, progress_bar, quiet_libraries

if TYPE_CHECKING:
    from ..memory.memory import Memory
    from ..model import Unlimiformer
    from ..text.sources import TextSource

DEFAULT_MODEL = "flan-t5-small-answers"
File = Annotated[str, typer.Argument(help="A UTF-8 text file, - for standard input, or a memory (folder or URL).")]
Model = Annotated[str, typer.Option(help="A name from `unlimiformer models`, a folder, or a hub id.")]
Window = Annotated[int | None, typer.Option(help="Tokens read at once; default: the encoder's limit, or 1024.")]
Overlap = Annotated[
    float | None,
    typer.Option(help="Share of a window that its neighbours read too; default: 0.5, or 0.25."),
]
Prefix = Annotated[str | None, typer.Option(help="Text in front of every window, such as a question.")]
Dtype = Annotated[str | None, typer.Option(help="Of the stored states: float32, bfloat16 or int8.")]
StoreOption = Annotated[
    str | None, typer.Option("--store", help="How states are searched: exact (default), cells or faiss.")
]
Recall = Annotated[float, typer.Option(help="Share of the attention that a store other than exact must find.")]
Device = Annotated[
    str | None, typer.Option(help="Where the model runs: cpu, cuda, mps; auto: spread over all, and the disk.")
]
ComputeDtype = Annotated[str | None, typer.Option(help="Of encoding, if not the model's own: bfloat16.")]
BatchSize = Annotated[int, typer.Option(help="Windows encoded at once.")]
TopK = Annotated[int | None, typer.Option(help="Tokens each head attends to (the window), or that are chosen (256).")]
Selection = Annotated[
    str | None,
    typer.Option(help="What a decoder-only model sees: reread (default), blocks, blocks-by-layer or top-k."),
]
PositionsOption = Annotated[
    str | None,
    typer.Option("--positions", help="Where it stands: consecutive (default), as-encoded or rescaled."),
]
Focus = Annotated[
    int | None,
    typer.Option(help="Tokens an encoder–decoder answers from: those its question looks at; 0: all."),
]
ProvenanceFile = Annotated[
    Path | None, typer.Option("--provenance", help="Write where the answer came from: FILE.json or FILE.html.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print all figures as one JSON object.")]


def settings(memory: Memory | None = None, **given: Any) -> UnlimiformerConfig:
    """The given settings; what is not given is as in the memory, or by default."""
    if memory is not None and memory.recipe is not None:
        given = {**memory.recipe.settings, **{name: value for name, value in given.items() if value is not None}}
    if given.get("overlap") is None:
        given.pop("overlap", None)
    return UnlimiformerConfig(**given)


def open_input(file: str) -> Memory | TextSource:
    """A memory, if there is one at this path; else the text."""
    from ..memory.memory import Memory
    from ..memory.remote import is_url
    from ..memory.storage import is_memory

    if is_url(file):
        return Memory.load(file)
    folder = Path(file)
    if file != "-" and folder.is_dir() and (is_memory(folder) or (folder / "partial").is_dir()):
        return Memory.load(folder)
    return input_pieces(file)


def open_wrapped(
    file: str, model: str, given: dict[str, Any], device: str | None
) -> tuple[Memory | TextSource, Unlimiformer]:
    """The input, and the model wrapped for it; what is wrong with the settings is said before anything is read."""
    settings(None, **given)
    source = open_input(file)
    from ..memory.memory import Memory

    kept = source if isinstance(source, Memory) else None
    return source, load_wrapped(model, settings(kept, **given), device)


def check_provenance_file(path: Path | None) -> None:
    """Before any work."""
    if path is not None and path.suffix not in (".json", ".html"):
        raise UnlimiformerError(f"--provenance is {str(path)!r}; expected a name that ends with .json or .html")
    if path is not None and not path.absolute().parent.is_dir():
        raise UnlimiformerError(f"--provenance is {str(path)!r}; there is no folder {path.absolute().parent}")


def fetch(model: str, *texts: str) -> list[str]:
    """Gets a model and texts out of the catalogue, if it has them; the texts' words."""
    from .. import hub as catalogue
    from ..hub.registry import MODELS, TEXTS

    with progress_bar("Getting model and text", "bytes") as progress:
        if model in MODELS:
            catalogue.get_model(model, messages.print, progress)
        files = [str(catalogue.get_text(t, messages.print, progress)) if t in TEXTS else t for t in texts]
    return ["".join(input_pieces(file)) for file in files]


def load_wrapped(
    name: str, config: UnlimiformerConfig, device: str | None, encoder_dtype: DTypeName | None = None
) -> Unlimiformer:
    """Loads a model and wraps it; an encoder's states are kept in `encoder_dtype` if the settings leave it open."""
    with messages.status(f"Loading {name}"):
        quiet_libraries()
        from ..hub.loading import load_on
        from ..model import Unlimiformer

        model, tokenizer = load_on(name, device)
        if config.dtype is None and model.config.is_encoder_decoder:
            config = replace(config, dtype=encoder_dtype)
        return Unlimiformer(model, tokenizer, config)
