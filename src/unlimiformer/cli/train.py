"""`unlimiformer train`: fine-tune a model by one of the paper's methods or its baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..utils.optional import require
from ..utils.system import is_first_process
from .console import messages, quiet_libraries
from .evaluate import QuestionForm, QuestionPlace
from .loading import fetch_model
from .options import SMALL_MODEL, AsJson


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the model: a new one, or one to continue.")],
    recipe: Annotated[str | None, typer.Option(help="A recipe's name or YAML file; other options change it.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help=f"A hub id, a folder, or a name from `unlimiformer models`; default: {SMALL_MODEL}."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="JSONL with document, question, answer; or a data set's name.")
    ] = None,
    validation: Annotated[str | None, typer.Option(help="Validation data; the best checkpoint is kept.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="standard, chunked, random, retrieval, alternating, truncate, sled or memorizing."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Tokens that each head retrieves; default: the window.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens per window; default: the encoder's limit.")] = None,
    overlap: Annotated[float | None, typer.Option(help="Share of a window that its neighbours contain too.")] = None,
    layer: Annotated[int | None, typer.Option(help="memorizing: the layer that retrieves, from 0.")] = None,
    gated: Annotated[bool | None, typer.Option(help="memorizing: learn a gate for each head.")] = None,
    question_place: QuestionPlace = None,
    question_form: QuestionForm = None,
    distractors: Annotated[int | None, typer.Option(help="Tokens of earlier documents in each store.")] = None,
    source_limit: Annotated[int | None, typer.Option(help="Longest document in training, in tokens.")] = None,
    target_limit: Annotated[int | None, typer.Option(help="Longest answer in training, in tokens.")] = None,
    examples: Annotated[int | None, typer.Option(help="Number of examples, evenly spread; default: all.")] = None,
    validation_examples: Annotated[int | None, typer.Option(help="Number of validation examples.")] = None,
    early_stop_unlimited: Annotated[
        bool | None, typer.Option("--early-stop-unlimited", help="Validate with all of each document.")
    ] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after this many validations without progress.")] = None,
    validate_every: Annotated[int | None, typer.Option(help="Steps between validations; default: an epoch.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer in validation, in tokens.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, instead of epochs.")] = None,
    train_batch_size: Annotated[int | None, typer.Option(help="Examples per batch.")] = None,
    accumulation: Annotated[int | None, typer.Option(help="Batches per optimizer step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    schedule: Annotated[str | None, typer.Option(help="linear, cosine, constant or constant_with_warmup.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps in which the learning rate rises.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of AdamW.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Replaces the model's dropout rates.")] = None,
    bfloat16: Annotated[bool | None, typer.Option("--bfloat16", help="Compute in bfloat16 where that is safe.")] = None,
    gradient_checkpointing: Annotated[
        bool | None, typer.Option("--gradient-checkpointing", help="Recompute the decoder's layers in backward.")
    ] = None,
    lora: Annotated[int | None, typer.Option(help="Train an adapter of this rank instead of all weights.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model for long inputs. The same command continues where it stopped."""
    options = dict(locals())
    for name in ("output", "recipe", "as_json"):
        del options[name]
    for option, field in _FIELDS.items():
        options[field] = options.pop(option)
    quiet_libraries()
    require("accelerate", "train", "training")
    from ..training import TrainingSettings, read_recipe, train

    fields = {"model": SMALL_MODEL, **(read_recipe(recipe) if recipe is not None else {})}
    fields |= {name: value for name, value in options.items() if value is not None}
    settings = TrainingSettings.of(fields, f"recipe {recipe}" if recipe else "the command")
    if is_first_process():
        fetch_model(settings.model)
    figures = train(settings, output, log=messages.print, callback=_make_callback())
    if not is_first_process():
        return
    if as_json:
        typer.echo(json.dumps({"output": str(output), **figures}, indent=1))
        return
    messages.print(f"wrote {output}: {figures.pop('steps')} steps")
    for name, value in figures.items():
        messages.print(f"{name.removeprefix('eval_').replace('_', ' ')}: {value:,.3f}")


_FIELDS = {
    "question_place": "question",
    "question_form": "form",
    "max_new_tokens": "new_tokens",
    "train_batch_size": "batch_size",
}
"""Options that have another name than the field of `TrainingSettings`, which recipes use."""


def _make_callback() -> Any:
    """A callback of the trainer that prints progress and metrics."""
    from transformers import TrainerCallback

    class PrintProgress(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
            hidden = [name for name in numbers if "per_second" in name or "runtime" in name]
            figures = ", ".join(
                f"{name.removeprefix('eval_')} {value:.4g}" for name, value in numbers.items() if name not in hidden
            )
            messages.print(f"step {state.global_step} of {state.max_steps}: {figures}", style="dim")

    return PrintProgress()
