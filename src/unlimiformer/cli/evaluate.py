"""`unlimiformer evaluate` and `compare`: how good answers are, and which differences are more than chance."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import integers, messages, progress_bar, quiet_libraries, size
from .options import (
    AsJson,
    Device,
    Dtype,
    Focus,
    Model,
    Overlap,
    PositionsOption,
    Recall,
    Selection,
    StoreOption,
    TopK,
    Window,
    fetch,
)

if TYPE_CHECKING:
    from ..evaluation import Comparison, Result

Task = Annotated[str, typer.Option(help="A name from `unlimiformer tasks`, or a YAML file.")]
Data = Annotated[str | None, typer.Option(help="JSONL with the task's fields, or with document, question, answer.")]
Split = Annotated[str, typer.Option(help="Of a hub's data set, or of what a program writes.")]
Examples = Annotated[int | None, typer.Option(help="So many only, evenly spread.")]
Beams = Annotated[int, typer.Option(help="1 is greedy.")]
NewTokens = Annotated[int | None, typer.Option("--max-new-tokens", help="Longest answer; default: the task's.")]


def evaluate(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; new, or to go on with.")],
    task: Task = "jsonl",
    method: Annotated[str, typer.Option(help="unlimiformer, truncate, sled or memorizing.")] = "unlimiformer",
    data: Data = None,
    split: Split = "validation",
    examples: Examples = None,
    input_limit: Annotated[int | None, typer.Option(help="Tokens of a document that any method may see.")] = None,
    metrics: Annotated[
        str | None, typer.Option(help="With commas: rouge, f1, exact_match, entities, bertscore; default: the task's.")
    ] = None,
    entity_model: Annotated[str | None, typer.Option(help="spaCy's pipeline; default: the catalogue's.")] = None,
    bertscore_model: Annotated[str | None, typer.Option(help="Default: the paper's, facebook/bart-large-mnli.")] = None,
    bertscore_layer: Annotated[int | None, typer.Option(help="Default: as the package knows, or the last.")] = None,
    question: Annotated[str | None, typer.Option(help="Where questions go: window (before each) or decoder.")] = None,
    form: Annotated[str | None, typer.Option(help="How a question is given, as '{question}'.")] = None,
    max_new_tokens: NewTokens = None,
    beams: Beams = 1,
    no_repeat_ngram: Annotated[int, typer.Option(help="No so many words in a row twice; 0 allows it.")] = 0,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token; more draws.")] = 0.0,
    seeds: Annotated[str, typer.Option(help="With commas; each draws answers of its own.")] = "0",
    batch_size: Annotated[int, typer.Option(help="Items answered at once, where the model allows it.")] = 1,
    top_k: TopK = None,
    focus: Focus = None,
    window: Window = None,
    overlap: Overlap = None,
    layers: Annotated[str | None, typer.Option(help="That retrieve, as 0,2,5.")] = None,
    heads: Annotated[str | None, typer.Option(help="That retrieve, as 0,2,5.")] = None,
    layer: Annotated[int | None, typer.Option(help="memorizing: the one that retrieves, from 0.")] = None,
    selection: Selection = None,
    positions: PositionsOption = None,
    dtype: Dtype = None,
    store: StoreOption = None,
    recall: Recall = 0.99,
    device: Device = None,
    strict: Annotated[bool, typer.Option("--strict", help="A malformed line is an error, not left out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Answer the questions of a task and measure the answers. The same command again goes on where it stopped."""
    quiet_libraries()
    from ..evaluation import EvaluationSettings
    from ..evaluation import evaluate as run

    config: dict[str, Any] = {
        "top_k": top_k,
        "focus": focus,
        "window": window,
        "overlap": overlap,
        "layers": integers("--layers", layers),
        "heads": integers("--heads", heads),
        "selection": selection,
        "positions": positions,
        "dtype": dtype,
        "store": store,
        "recall": recall,
    }
    settings = EvaluationSettings(
        model=model,
        task=task,
        method=method,
        data=data,
        split=split,
        examples=examples,
        input_limit=input_limit,
        config={name: value for name, value in config.items() if value is not None},
        layer=layer,
        place=question,
        form=form,
        new_tokens=max_new_tokens,
        beams=beams,
        no_repeat_ngram=no_repeat_ngram,
        temperature=temperature,
        seeds=integers("--seeds", seeds) or (),
        batch_size=batch_size,
        metrics=None if metrics is None else tuple(part.strip() for part in metrics.split(",")),
        entity_model=entity_model,
        bertscore_model=bertscore_model,
        bertscore_layer=bertscore_layer,
        strict=strict,
        device=device,
    )
    fetch(model)
    try:
        with progress_bar("Answering", "answers") as progress:
            result = run(settings, output, messages.print, progress)
    except KeyboardInterrupt:
        messages.print(f"stopped; the same command goes on in {output}")
        raise
    if as_json:
        typer.echo(result.to_json(), nl=False)
        return
    _show(result, output)


def compare(
    results: Annotated[list[Path], typer.Argument(help="Results of `evaluate`: files, or the folders of runs.")],
    as_json: AsJson = False,
) -> None:
    """Runs side by side; each against the first, by paired bootstrap over the items that all of them have."""
    quiet_libraries()
    from ..evaluation import compare as compared

    found = compared(results)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
    else:
        _show_comparison(found)


def tasks(as_json: AsJson = False) -> None:
    """What `evaluate` and `train` know by name."""
    from ..tasks import tasks as known

    if as_json:
        typer.echo(json.dumps({name: asdict(task) for name, task in known().items()}, indent=1))
        return
    for name, task in known().items():
        where = task.hub["dataset"] if task.hub else "written by a program" if task.written else "your file"
        typer.echo(f"{name} (version {task.version}; {where}; {', '.join(task.metrics)})\n    {task.about}")


def _show(result: Result, output: Path) -> None:
    from rich.table import Table

    table = Table("metric", "mean", "95 % of draws")
    for name, mean in result.metrics.items():
        table.add_row(name, f"{mean.value:.2f}", f"{mean.low:.2f} to {mean.high:.2f}")
    messages.print(table)
    line = f"{len(result.keys):,} items · {result.seconds:,.0f} s · {size(result.peak_bytes)} at most"
    if result.left_out:
        line += f" · {len(result.left_out):,} malformed lines left out"
    messages.print(f"{line} · wrote {output}", style="dim")


def _show_comparison(found: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    names = list(found.means[0])
    table = Table("run", *names)
    for run, means in zip(found.names, found.means, strict=True):
        table.add_row(
            run, *(f"{means[name].value:.2f}\n{means[name].low:.2f}–{means[name].high:.2f}" for name in names)
        )
    for run, differences in zip(found.names[1:], found.differences, strict=True):
        cells = (f"{differences[name].value:+.2f}\np {differences[name].p:.4f}" for name in names)
        table.add_row(f"{run} − {found.names[0]}", *cells)
    Console(highlight=False).print(table)
    messages.print(f"{found.items:,} items; beneath each mean what 95 % of the draws lie between", style="dim")
