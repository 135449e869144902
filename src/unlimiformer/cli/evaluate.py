"""`unlimiformer evaluate`, `compare` and `tasks`: measure answers, and test whether differences are significant."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import messages, progress_bar, quiet_libraries, size
from .loading import fetch_model
from .options import (
    DEFAULT_MODEL,
    AsJson,
    Device,
    Model,
    config_options,
    generation_options,
    integers,
)

if TYPE_CHECKING:
    from ..evaluation import Comparison, Result

Task = Annotated[str | None, typer.Option(help="A name from `unlimiformer tasks`, or a YAML file; default: jsonl.")]
Method = Annotated[
    str | None, typer.Option(help="unlimiformer (default), truncate, full, bm25, map-reduce, sled or memorizing.")
]
Data = Annotated[str | None, typer.Option(help="JSONL with the task's fields, or with document, question, answer.")]
Split = Annotated[str, typer.Option(help="Split of a data set of the hub, or of generated data.")]
Examples = Annotated[int | None, typer.Option(help="Number of examples, evenly spread; default: all.")]
QuestionPlace = Annotated[
    str | None,
    typer.Option(help="Where questions go in an encoder–decoder: window (before each), first (once) or decoder."),
]
QuestionForm = Annotated[str | None, typer.Option(help="Template of a question, such as '{question}'.")]
EntityModel = Annotated[
    str | None,
    typer.Option(help="spaCy pipeline that finds entities; default: en-core-web-sm. The paper's: en_core_web_lg."),
]
SummaryPrompt = Annotated[
    str | None, typer.Option(help="What is asked for a summary; default: as the model was trained, or nothing.")
]


@config_options(
    *("top_k", "focus", "window", "overlap", "layers", "heads", "selection", "positions", "dtype", "store", "recall"),
    "batch_size",
)
@generation_options(
    *("max_new_tokens", "num_beams", "length_penalty", "no_repeat_ngram_size", "repetition_penalty"),
    *("temperature", "top_p"),
)
def evaluate(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run: a new one, or one to continue.")],
    settings: dict[str, Any],
    generation: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    recipe: Annotated[
        str | None, typer.Option(help="A row of the paper: its task and method, from `unlimiformer recipes`.")
    ] = None,
    task: Task = None,
    method: Method = None,
    data: Data = None,
    split: Split = "validation",
    examples: Examples = None,
    input_limit: Annotated[int | None, typer.Option(help="Tokens of a document that any method may see.")] = None,
    metrics: Annotated[
        str | None, typer.Option(help="With commas: rouge, f1, exact_match, entities, bertscore; default: the task's.")
    ] = None,
    entity_model: EntityModel = None,
    bertscore_model: Annotated[str | None, typer.Option(help="Default: the paper's, facebook/bart-large-mnli.")] = None,
    bertscore_layer: Annotated[int | None, typer.Option(help="Default: the package's choice, or the last.")] = None,
    question_place: QuestionPlace = None,
    question_form: QuestionForm = None,
    summary_prompt: SummaryPrompt = None,
    seeds: Annotated[str, typer.Option(help="With commas; each samples its own answers (--temperature).")] = "0",
    items_per_call: Annotated[int, typer.Option(help="Items answered at once, where the model allows it.")] = 1,
    layer: Annotated[int | None, typer.Option(help="memorizing: the layer that retrieves, from 0.")] = None,
    device: Device = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at a malformed line instead of skipping it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Answer the questions of a task and measure the answers. The same command continues where it stopped."""
    quiet_libraries()
    from ..evaluation import EvaluationSettings
    from ..evaluation import evaluate as run_evaluation

    fields = {
        "task": task,
        "method": method,
        "data": data,
        "examples": examples,
        "input_limit": input_limit,
        "layer": layer,
        "place": question_place,
        "form": question_form,
        "summary_prompt": summary_prompt,
        "metrics": None if metrics is None else tuple(part.strip() for part in metrics.split(",")),
        "entity_model": entity_model,
        "bertscore_model": bertscore_model,
        "bertscore_layer": bertscore_layer,
        "device": device,
    }
    row = {} if recipe is None else _read_recipe(recipe)
    given = {
        "model": model,
        "split": split,
        "generation": generation,
        "seeds": integers("--seeds", seeds) or (),
        "batch_size": items_per_call,
        "strict": strict,
    }
    given |= {name: value for name, value in fields.items() if value is not None}
    source = f"recipe {recipe}" if recipe else "the command"
    evaluation = EvaluationSettings.of({**row, **given}, source)
    evaluation = replace(evaluation, config={**evaluation.config, **settings})
    fetch_model(model)
    try:
        with progress_bar("Answering", "answers") as progress:
            result = run_evaluation(evaluation, output, messages.print, progress)
    except KeyboardInterrupt:
        messages.print(f"interrupted; the same command continues where it stopped ({output})")
        raise
    if as_json:
        typer.echo(result.to_json(), nl=False)
        return
    _show_result(result, output)


def _read_recipe(name: str) -> dict[str, Any]:
    """The settings of the evaluation that belongs to a recipe."""
    from ..training.recipe import read_recipe

    return dict(read_recipe(name).test)


def compare(
    results: Annotated[list[Path], typer.Argument(help="Results of `evaluate`: files, or the folders of runs.")],
    as_json: AsJson = False,
) -> None:
    """Compare runs with the first one, by paired bootstrap over the items that all of them have."""
    quiet_libraries()
    from ..evaluation import compare as compare_results

    comparison = compare_results(results)
    if as_json:
        typer.echo(json.dumps(asdict(comparison), indent=1))
    else:
        _show_comparison(comparison)


def tasks(as_json: AsJson = False) -> None:
    """List the tasks that `evaluate` and `train` know by name."""
    from ..tasks import tasks as all_tasks

    if as_json:
        typer.echo(json.dumps({name: asdict(task) for name, task in all_tasks().items()}, indent=1))
        return
    for name, task in all_tasks().items():
        origin = task.hub["dataset"] if task.hub else "generated" if task.written else "your file"
        typer.echo(f"{name} (version {task.version}; {origin}; {', '.join(task.metrics)})\n    {task.about}")


def _show_result(result: Result, output: Path) -> None:
    from rich.table import Table

    if result.metrics:
        table = Table("metric", "mean", "95 % interval")
        for name, mean in result.metrics.items():
            table.add_row(name, f"{mean.value:.2f}", f"{mean.low:.2f} to {mean.high:.2f}")
        messages.print(table)
    else:
        messages.print("the correct answers are not known: nothing was scored")
    line = f"{len(result.keys):,} items · {result.seconds:,.0f} s · peak memory {size(result.peak_bytes)}"
    if result.left_out:
        line += f" · {len(result.left_out):,} malformed lines skipped"
    messages.print(f"{line} · wrote {output}", style="dim")


def _show_comparison(comparison: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    names = list(comparison.means[0])
    table = Table("run", *names)
    for run, means in zip(comparison.names, comparison.means, strict=True):
        table.add_row(
            run, *(f"{means[name].value:.2f}\n{means[name].low:.2f}–{means[name].high:.2f}" for name in names)
        )
    for run, differences in zip(comparison.names[1:], comparison.differences, strict=True):
        cells = (f"{differences[name].value:+.2f}\np {differences[name].p:.4f}" for name in names)
        table.add_row(f"{run} − {comparison.names[0]}", *cells)
    Console(highlight=False).print(table)
    messages.print(f"{comparison.items:,} items; below each mean its 95 % bootstrap interval", style="dim")
