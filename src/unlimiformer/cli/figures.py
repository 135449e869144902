"""`unlimiformer figures`: draw the paper's figures for any model from real runs, as PNG and CSV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..utils.plotting import pyplot
from .console import messages, progress_bar, quiet_libraries
from .evaluate import Data, EntityModel, Examples, Split, Task
from .loading import fetch_model, load_wrapped, make_config, read_texts
from .options import (
    SMALL_MODEL,
    AsJson,
    Device,
    Model,
    Repeats,
    Text,
    config_options,
    generation_options,
    integers,
    require_at_least,
)

app = typer.Typer(help="Draw the paper's figures from real runs.", no_args_is_help=True)

TEXT = "shakespeare/hamlet"
Folder = Annotated[Path, typer.Option("--output", "-o", help="Folder for the PNG and CSV files.")]


@app.command("quality")
@config_options("top_k")
@generation_options("max_new_tokens", "num_beams")
def quality(
    settings: dict[str, Any],
    generation: dict[str, Any],
    model: Model = SMALL_MODEL,
    task: Task = None,
    data: Data = None,
    split: Split = "validation",
    examples: Examples = None,
    limits: Annotated[str, typer.Option(help="Tokens that may be seen, with commas; all: no limit.")] = (
        "512,2048,8192,all"
    ),
    metric: Annotated[str | None, typer.Option(help="What is drawn; default: the task's first metric.")] = None,
    method: Annotated[str, typer.Option(help="unlimiformer, sled or memorizing.")] = "unlimiformer",
    entity_model: EntityModel = None,
    device: Device = None,
    output: Folder = Path("figures"),
    as_json: AsJson = False,
) -> None:
    """Quality against the allowed input length (the paper's figure 3). The same command continues where it stopped."""
    parts = [None if part.strip() == "all" else part for part in limits.split(",")]
    lengths = [None if part is None else (integers("--limits", part) or (0,))[0] for part in parts]
    if 0 in lengths:
        raise InputError(f"--limits is {limits!r}; expected numbers of at least 1, or all")
    quiet_libraries()
    fetch_model(model)
    from ..evaluation import EvaluationSettings
    from ..figures import quality as figure

    evaluation = EvaluationSettings(
        model=model,
        task=task or ("play-facts" if data is None else "jsonl"),
        method=method,
        data=data,
        split=split,
        examples=examples,
        config=settings,
        generation=generation,
        entity_model=entity_model,
        device=device,
    )
    with progress_bar("Answering", "answers") as progress:
        rows, files = figure.run(evaluation, lengths, metric, output, messages.print, progress)
    _show(rows, files, as_json)


@app.command("time")
@config_options("top_k", "window", "overlap")
@generation_options(max_new_tokens=32)
def timing(
    settings: dict[str, Any],
    generation: dict[str, Any],
    model: Model = SMALL_MODEL,
    text: Text = TEXT,
    lengths: Annotated[str, typer.Option(help="Input tokens, as 1024,16384.")] = "512,2048,8192,32768",
    repeats: Repeats = 2,
    device: Device = None,
    output: Folder = Path("figures"),
    as_json: AsJson = False,
) -> None:
    """Time per example against the length of its input (the paper's figure 4)."""
    input_lengths = _positive_integers("--lengths", lengths)
    require_at_least(1, repeats=repeats)
    wrapped, document = _load(model, text, settings, device)
    from ..figures import timing as figure
    from ..qa import QuestionFormat

    with messages.status("Measuring") as status:
        rows, files = figure.run(
            wrapped,
            QuestionFormat.for_model(model),
            document,
            input_lengths,
            new_tokens=generation["max_new_tokens"],
            repeats=repeats,
            folder=output,
            log=status.update,
        )
    _show(rows, files, as_json)


@app.command("hits")
@config_options("top_k", "window", "overlap")
@generation_options(max_new_tokens=128)
def hits(
    settings: dict[str, Any],
    generation: dict[str, Any],
    model: Model = SMALL_MODEL,
    text: Text = TEXT,
    question: Annotated[str | None, typer.Option(help="A question; default: summarise the text.")] = None,
    task: Task = None,
    data: Data = None,
    split: Split = "test",
    examples: Examples = None,
    device: Device = None,
    output: Folder = Path("figures"),
    as_json: AsJson = False,
) -> None:
    """Where in documents retrieved tokens are, and how many are retrieved at all (the paper's figure 5).

    --task or --data average over all documents of a data set, as the paper does.
    """
    config = make_config(settings)
    pyplot()
    if task is None and data is None:
        questions = [("\n\n".join(read_texts(text)), question)]
    else:
        questions = [(example.document, example.question) for example in _load_examples(task, data, split, examples)]
    wrapped = load_wrapped(model, config, device)
    from ..figures import hits as figure
    from ..qa import QuestionFormat

    question_format = QuestionFormat.for_model(model)
    with progress_bar("Answering", "answers") as progress:
        row, files = figure.run(wrapped, question_format, questions, generation["max_new_tokens"], output, progress)
    _show([row], files, as_json)


@app.command("data")
def data_statistics(
    task: Task = None,
    data: Data = None,
    split: Split = "validation",
    examples: Examples = None,
    model: Annotated[str, typer.Option(help="Whose tokens are counted.")] = SMALL_MODEL,
    output: Folder = Path("figures"),
    as_json: AsJson = False,
) -> None:
    """Number of examples and length of inputs and outputs of any data (the paper's table 2 and figure 1)."""
    pyplot()
    loaded = _load_examples(task, data, split, examples)
    fetch_model(model)
    from ..figures import data as figure
    from ..hub.loading import load_tokenizer

    row, files = figure.run(loaded, load_tokenizer(model), output)
    _show([row], files, as_json)


def _load_examples(task: str | None, data: str | None, split: str, count: int | None) -> list[Any]:
    """Examples of a task or of a file."""
    quiet_libraries()
    from ..tasks import task as get_task

    return get_task(task or "jsonl").load(data, split, count)


@app.command("mass")
@config_options("window", "overlap")
def mass(
    settings: dict[str, Any],
    model: Model = SMALL_MODEL,
    text: Text = TEXT,
    ks: Annotated[str, typer.Option("--k", help="Numbers of tokens, with commas.")] = "16,64,256,1024,4096",
    lengths: Annotated[str, typer.Option(help="Input tokens, as 1024,16384.")] = "2048,8192,32768",
    device: Device = None,
    output: Folder = Path("figures"),
    as_json: AsJson = False,
) -> None:
    """The share of the attention that the k best tokens have, by layer and head: the paper's 99 %, measured."""
    numbers, input_lengths = _positive_integers("--k", ks), _positive_integers("--lengths", lengths)
    wrapped, document = _load(model, text, settings, device)
    from ..figures import mass as figure
    from ..text.tokenization import truncate_text

    with progress_bar("Indexing") as progress:
        memory = wrapped.index(truncate_text(document, wrapped.tokenizer, max(input_lengths)), progress=progress)
    with messages.status("Measuring"):
        rows, files = figure.run(wrapped, memory, numbers, input_lengths, output)
    _show(rows if as_json else figure.summary(rows), files, as_json)


def _positive_integers(name: str, text: str) -> tuple[int, ...]:
    numbers = integers(name, text) or ()
    if not numbers or min(numbers) < 1:
        raise InputError(f"{name} is {text!r}; expected numbers of at least 1, with commas")
    return numbers


def _load(model: str, text: str, settings: dict[str, Any], device: str | None) -> tuple[Any, str]:
    """The wrapped model and the text; a missing plotting library is reported before any work."""
    config = make_config(settings)
    pyplot()
    document = "\n\n".join(read_texts(text))
    return load_wrapped(model, config, device), document


def _show(rows: list[dict[str, Any]], files: list[Path], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"rows": rows, "files": [str(file) for file in files]}, indent=1))
        return
    from rich.table import Table

    table = Table(*(name.replace("_", " ") for name in rows[0]))
    for row in rows:
        table.add_row(
            *(f"{v:,.3f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else v for v in row.values())
        )
    messages.print(table)
    messages.print(f"wrote {' and '.join(map(str, files))}")
