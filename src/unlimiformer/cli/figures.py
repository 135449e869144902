"""`unlimiformer figures`: the paper's figures for any model, from real runs, as PNG and CSV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UnlimiformerError
from ..utils.plotting import pyplot
from .console import integers, messages, progress_bar, quiet_libraries
from .evaluate import Beams, Data, Examples, NewTokens, Split, Task
from .options import DEFAULT_MODEL, AsJson, Device, Overlap, TopK, Window, fetch, load_wrapped, settings

app = typer.Typer(help="Draw the paper's figures from real runs.", no_args_is_help=True)

TEXT = "shakespeare/hamlet"
Model = Annotated[str, typer.Option(help="A name from `unlimiformer models`, a folder, or a hub id.")]
Text = Annotated[str, typer.Option(help="A name from `unlimiformer texts`, or a file.")]
Folder = Annotated[Path, typer.Option("--output", "-o", help="Where the files go.")]


@app.command("quality")
def quality(
    model: Model = DEFAULT_MODEL,
    task: Task = "play-facts",
    data: Data = None,
    split: Split = "validation",
    examples: Examples = None,
    limits: Annotated[str, typer.Option(help="Tokens that may be seen; all for no limit.")] = "512,2048,8192,all",
    metric: Annotated[str | None, typer.Option(help="What is drawn; default: the task's first.")] = None,
    method: Annotated[str, typer.Option(help="unlimiformer, sled or memorizing.")] = "unlimiformer",
    max_new_tokens: NewTokens = None,
    beams: Beams = 1,
    top_k: TopK = None,
    device: Device = None,
    output: Folder = Path("figures"),
    as_json: AsJson = False,
) -> None:
    """Quality against the allowed input length (the paper's figure 3). Stopped, the same command goes on."""
    allowed = [None if part.strip() == "all" else part for part in limits.split(",")]
    chosen = [None if part is None else (integers("--limits", part) or (0,))[0] for part in allowed]
    if 0 in chosen:
        raise UnlimiformerError(f"--limits is {limits!r}; expected numbers of at least 1, or all")
    quiet_libraries()
    fetch(model)
    from ..evaluation import EvaluationSettings
    from ..figures import quality as figure

    config = {} if top_k is None else {"top_k": top_k}
    wanted = EvaluationSettings(
        model=model,
        task=task,
        method=method,
        data=data,
        split=split,
        examples=examples,
        config=config,
        new_tokens=max_new_tokens,
        beams=beams,
        device=device,
    )
    with progress_bar("Answering", "answers") as progress:
        rows, files = figure.run(wanted, chosen, metric, output, messages.print, progress)
    _tell(rows, files, as_json)


@app.command("time")
def timing(
    model: Model = DEFAULT_MODEL,
    text: Text = TEXT,
    lengths: Annotated[str, typer.Option(help="Input tokens, as 1024,16384.")] = "512,2048,8192,32768",
    new_tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 32,
    repeats: Annotated[int, typer.Option(help="Measurements; the best counts.")] = 2,
    top_k: TopK = None,
    window: Window = None,
    overlap: Overlap = None,
    device: Device = None,
    output: Folder = Path("figures"),
    as_json: AsJson = False,
) -> None:
    """Time per example against the length of its input (the paper's figure 4)."""
    chosen = integers("--lengths", lengths) or ()
    if not chosen or min(chosen) < 1 or new_tokens < 1 or repeats < 1:
        raise UnlimiformerError("--lengths, --new-tokens and --repeats must be at least 1")
    wrapped, words = _opened(model, text, {"top_k": top_k, "window": window, "overlap": overlap}, device)
    from ..figures import timing as figure
    from ..qa import QuestionFormat

    asking = QuestionFormat.for_model(model)
    with messages.status("Measuring") as status:
        rows, files = figure.run(wrapped, asking, words, chosen, new_tokens, repeats, output, status.update)
    _tell(rows, files, as_json)


@app.command("hits")
def hits(
    model: Model = DEFAULT_MODEL,
    text: Text = TEXT,
    question: Annotated[str | None, typer.Option(help="What to ask; default: for a summary.")] = None,
    new_tokens: Annotated[int, typer.Option(help="Tokens of the answer, at most.")] = 128,
    top_k: TopK = None,
    window: Window = None,
    overlap: Overlap = None,
    device: Device = None,
    output: Folder = Path("figures"),
    as_json: AsJson = False,
) -> None:
    """Where in a document retrieved tokens lie, and how many are retrieved at all (the paper's figure 5)."""
    if new_tokens < 1:
        raise UnlimiformerError(f"--new-tokens is {new_tokens}; expected at least 1")
    wrapped, words = _opened(model, text, {"top_k": top_k, "window": window, "overlap": overlap}, device)
    from ..engines import Seq2SeqEngine
    from ..figures import hits as figure
    from ..qa import QuestionFormat

    if isinstance(wrapped.engine, Seq2SeqEngine):
        wrapped.engine.focus = 0  # what heads retrieve themselves is drawn

    with progress_bar("Reading") as progress:
        told, files = figure.run(
            wrapped, QuestionFormat.for_model(model), words, question, new_tokens, output, progress
        )
    _tell([told], files, as_json)


@app.command("mass")
def mass(
    model: Model = DEFAULT_MODEL,
    text: Text = TEXT,
    ks: Annotated[str, typer.Option("--k", help="Numbers of tokens, with commas.")] = "16,64,256,1024,4096",
    lengths: Annotated[str, typer.Option(help="Beginnings of the text, in tokens.")] = "2048,8192,32768",
    window: Window = None,
    overlap: Overlap = None,
    device: Device = None,
    output: Folder = Path("figures"),
    as_json: AsJson = False,
) -> None:
    """The share of the attention that the k best tokens have, by layer and head: the paper's 99 %, measured."""
    numbers, beginnings = integers("--k", ks) or (), integers("--lengths", lengths) or ()
    if not numbers or min(numbers) < 1 or not beginnings or min(beginnings) < 1:
        raise UnlimiformerError("--k and --lengths must be at least 1")
    wrapped, words = _opened(model, text, {"window": window, "overlap": overlap}, device)
    from ..figures import mass as figure
    from ..text.tokenization import truncate_text

    shown = truncate_text(words, wrapped.tokenizer, max(beginnings))
    with progress_bar("Reading") as progress:
        memory = wrapped.index(shown, progress=progress)
    with messages.status("Measuring"):
        rows, files = figure.run(wrapped, memory, numbers, beginnings, output)
    _tell(rows if as_json else figure.summary(rows), files, as_json)


def _opened(model: str, text: str, given: dict[str, Any], device: str | None) -> tuple[Any, str]:
    config = settings(**given)
    pyplot()  # what is missing is said before any work
    quiet_libraries()
    (words,) = fetch(model, text)
    return load_wrapped(model, config, device), words


def _tell(rows: list[dict[str, Any]], files: list[Path], as_json: bool) -> None:
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
