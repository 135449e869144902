"""Command-line options that several commands share. Every option is declared here once and means one thing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ..errors import InputError

DEFAULT_MODEL = "qwen2.5-coder-0.5b-answers"
"""The model of every command that answers or writes."""
SMALL_MODEL = "flan-t5-small-answers"
"""The encoder–decoder of commands that train or draw figures."""

Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A document (PDF, EPUB, DOCX, HTML, subtitles, text), - for standard input, a memory (folder or URL), or "
        "a name from `unlimiformer texts`.",
    ),
]
Model = Annotated[str, typer.Option(help="A hub id, a folder, or a name from `unlimiformer models`.")]
Device = Annotated[
    str | None,
    typer.Option(help="Where the model runs: cpu, cuda, cuda:1, mps; auto spreads it (accelerate)."),
]
Text = Annotated[str, typer.Option(help="A text file, or a name from `unlimiformer texts`; with commas for several.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ProvenanceFile = Annotated[
    Path | None, typer.Option("--provenance", help="Write where the answer came from: FILE.json or FILE.html.")
]
Passages = Annotated[int, typer.Option(help="Number of passages shown with every answer.")]
Repeats = Annotated[int, typer.Option(help="Measurements of each method; the best one counts.")]

Option = tuple[Any, Any, Any]
"""Type, declaration and default of an option."""

CONFIG_OPTIONS: dict[str, Option] = {
    "top_k": (
        int | None,
        typer.Option(help="Tokens that each head retrieves (default: the window), or that are selected (512, 2048)."),
        None,
    ),
    "layers": (str | None, typer.Option(help="Decoder layers that retrieve, as 0,2,5 or 8-11; default: all."), None),
    "heads": (str | None, typer.Option(help="Heads that retrieve, as 0,2,5 or 0-3; default: all."), None),
    "window": (int | None, typer.Option(help="Tokens per window; default: the encoder's limit, or 1024."), None),
    "overlap": (
        float | None,
        typer.Option(help="Share of a window that its neighbours contain too; default: 0.5, or 0.25."),
        None,
    ),
    "prefix": (str | None, typer.Option(help="Text before every window, such as a question."), None),
    "focus": (
        int | None,
        typer.Option(help="Tokens an encoder–decoder answers from: those its question attends to; 0 means all."),
        None,
    ),
    "selection": (
        str | None,
        typer.Option(
            help="What a decoder-only model sees: reread (default), blocks, blocks-by-layer or top-k. "
            "Encoder–decoders: top-k, or reread for questions."
        ),
        None,
    ),
    "positions": (
        str | None,
        typer.Option(help="Positions of selected tokens: consecutive (default), as-encoded or rescaled."),
        None,
    ),
    "dtype": (str | None, typer.Option(help="Type of the stored states: float32, bfloat16 or int8."), None),
    "compute_dtype": (
        str | None,
        typer.Option(
            help="Type in which windows are encoded: bfloat16, or auto: that for long documents where it is faster. "
            "Default: auto where one document or memory is opened or made, else the model's own."
        ),
        None,
    ),
    "store": (
        str | None,
        typer.Option(
            help="How states are searched: exact, ivf, faiss or auto, which is ivf for a long text if it is faster; "
            "default: auto where memories are kept (index, serve), else exact."
        ),
        None,
    ),
    "recall": (
        float,
        typer.Option(help="Share of the attention that a store other than exact must find."),
        0.99,
    ),
    "batch_size": (int | None, typer.Option(help="Windows encoded at once; default: 4."), None),
}
"""Options that become fields of `UnlimiformerConfig`."""

GENERATION_OPTIONS: dict[str, Option] = {
    "max_new_tokens": (int | None, typer.Option(help="Longest answer, in tokens."), None),
    "min_new_tokens": (int | None, typer.Option(help="Shortest answer, in tokens."), None),
    "num_beams": (int | None, typer.Option(help="Beams of the search; 1 is greedy."), None),
    "length_penalty": (float | None, typer.Option(help="With beams: above 0 prefers long answers."), None),
    "no_repeat_ngram_size": (
        int | None,
        typer.Option(help="Never repeat this many tokens in a row; 0 allows it."),
        None,
    ),
    "repetition_penalty": (float | None, typer.Option(help="Above 1 makes repeated tokens less likely."), None),
    "temperature": (
        float | None,
        typer.Option(help="Sample with this temperature; 0 (default) takes the most likely token."),
        None,
    ),
    "top_p": (float | None, typer.Option(help="Sample from the likeliest tokens of this probability."), None),
    "num_return_sequences": (int | None, typer.Option(help="Answers to write, best first."), None),
}
"""Options that become arguments of the model's `generate`. What is not given is left to the model's own settings; but
nothing is sampled unless --temperature or --top-p ask for it."""
_MINIMUM: dict[str, float] = {
    "max_new_tokens": 1,
    "min_new_tokens": 0,
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "temperature": 0,
}
_MINIMUM |= {"num_return_sequences": 1, "repetition_penalty": 0.01, "top_p": 0.01}


def config_options(*names: str) -> Callable[[Callable], Callable]:
    """Add options to a command, which receives those that are set as a dict, `settings`."""

    def collect(values: dict[str, Any]) -> dict[str, Any]:
        for name in ("layers", "heads"):
            if values.get(name) is not None:
                values[name] = integers(f"--{name}", values[name])
        return values

    return _add_options({name: CONFIG_OPTIONS[name] for name in names}, "settings", collect)


def generation_options(*names: str, **defaults: Any) -> Callable[[Callable], Callable]:
    """Add options to a command, which receives the arguments of `generate` as a dict, `generation`."""
    options = {name: GENERATION_OPTIONS[name] for name in (*names, *defaults)}
    for name, default in defaults.items():
        options[name] = (*options[name][:2], default)

    def collect(values: dict[str, Any]) -> dict[str, Any]:
        for name, value in values.items():
            if value < _MINIMUM.get(name, value):
                raise InputError(f"--{name.replace('_', '-')} is {value}; expected at least {_MINIMUM[name]}")
        shortest, longest = values.get("min_new_tokens", 0), values.get("max_new_tokens")
        if longest is not None and shortest > longest:
            raise InputError(f"--min-new-tokens is {shortest}; expected at most {longest}, the longest answer")
        if values.get("top_p", 0) > 1:
            raise InputError(f"--top-p is {values['top_p']}; expected at most 1")
        if not values.get("temperature"):
            values.pop("temperature", None)
        return {**values, "do_sample": "temperature" in values or "top_p" in values}

    return _add_options(options, "generation", collect)


def _add_options(
    options: dict[str, Option], name: str, collect: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[[Callable], Callable]:
    """Replace the parameter `name` of a command by `options`; the command gets what `collect` makes of their values."""

    def decorate(command: Callable) -> Callable:
        hints = get_type_hints(command, include_extras=True)
        signature = inspect.signature(command)
        parameters = [
            parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
            for parameter in signature.parameters.values()
            if parameter.name != name
        ]
        own = {
            option: inspect.Parameter(
                option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declaration]
            )
            for option, (kind, declaration, default) in options.items()
        }

        @wraps(command)
        def run(**arguments: Any) -> Any:
            values = {option: arguments.pop(option) for option in options}
            values = {option: value for option, value in values.items() if value is not None}
            return command(**arguments, **{name: collect(values)})

        combined = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters), *own.values()]
        run.__signature__ = inspect.Signature(combined)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in combined}
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return decorate


def integers(name: str, text: str | None) -> tuple[int, ...] | None:
    """Numbers from a text such as "0,2,5" or "0,8-11"; None stays None."""
    if text is None:
        return None
    numbers: list[int] = []
    for part in filter(str.strip, text.split(",")):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f"{name} is {text!r}; expected numbers with commas, such as 0,2,5 or 0,8-11")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(numbers)


def require_at_least(minimum: int, **values: int | None) -> None:
    """Raise if an option is smaller; None is allowed."""
    for name, value in values.items():
        if value is not None and value < minimum:
            raise InputError(f"--{name.replace('_', '-')} is {value}; expected at least {minimum}")


def check_provenance_file(path: Path | None) -> None:
    """Raise, before any work, if provenance cannot be written to this path."""
    if path is not None and path.suffix not in (".json", ".html"):
        raise InputError(f"--provenance is {str(path)!r}; expected a name that ends with .json or .html")
    if path is not None and not path.absolute().parent.is_dir():
        raise InputError(f"--provenance is {str(path)!r}; there is no folder {path.absolute().parent}")
