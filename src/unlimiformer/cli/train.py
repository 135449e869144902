"""`unlimiformer train` and `recipes`: fine-tune a model by one of the paper's methods or its baselines."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..utils.system import is_first_process
from .console import messages, quiet_libraries
from .evaluate import QuestionForm, QuestionPlace, SummaryPrompt
from .loading import fetch_model
from .options import SMALL_MODEL, AsJson, integers


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
        typer.Option(help="standard, chunked, random, retrieval, alternating, truncate, sled, memorizing or reread."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Tokens that each head retrieves; default: the window.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens per window; default: the encoder's limit.")] = None,
    overlap: Annotated[float | None, typer.Option(help="Share of a window that its neighbours contain too.")] = None,
    layers: Annotated[str | None, typer.Option(help="Decoder layers that retrieve, as 0,2,5 or 3-5.")] = None,
    heads: Annotated[str | None, typer.Option(help="Heads that retrieve, as 0,2,5 or 3-5.")] = None,
    layer: Annotated[int | None, typer.Option(help="memorizing: the layer that retrieves, from 0.")] = None,
    gated: Annotated[bool | None, typer.Option(help="memorizing: learn a gate for each head.")] = None,
    question_place: QuestionPlace = None,
    question_form: QuestionForm = None,
    summary_prompt: SummaryPrompt = None,
    distractors: Annotated[int | None, typer.Option(help="Tokens of earlier documents in each store.")] = None,
    source_limit: Annotated[int | None, typer.Option(help="Longest document in training, in tokens.")] = None,
    target_limit: Annotated[int | None, typer.Option(help="Longest answer in training, in tokens.")] = None,
    examples: Annotated[int | None, typer.Option(help="Number of examples, evenly spread; default: all.")] = None,
    validation_limit: Annotated[
        int | None, typer.Option(help="Longest document in validation, in tokens; default: all of it.")
    ] = None,
    validation_examples: Annotated[int | None, typer.Option(help="Number of validation examples.")] = None,
    early_stop_unlimited: Annotated[
        bool | None, typer.Option("--early-stop-unlimited", help="Validate with all of each document.")
    ] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after this many validations without progress.")] = None,
    validate_every: Annotated[int | None, typer.Option(help="Steps between validations; default: an epoch.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Chooses the best checkpoint: rouge, f1 or exact_match; default: the task's, or f1."),
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer in validation, in tokens.")] = None,
    num_beams: Annotated[int | None, typer.Option(help="Beams in validation; default: the model's setting.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, instead of epochs.")] = None,
    train_batch_size: Annotated[int | None, typer.Option(help="Examples per batch.")] = None,
    accumulation: Annotated[int | None, typer.Option(help="Batches per optimizer step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    schedule: Annotated[str | None, typer.Option(help="linear, cosine, constant or constant_with_warmup.")] = None,
    warmup: Annotated[
        float | None, typer.Option(help="Steps in which the learning rate rises; below 1, their share.")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of AdamW.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Replaces the model's dropout rates.")] = None,
    bfloat16: Annotated[bool | None, typer.Option("--bfloat16", help="Compute in bfloat16 where that is safe.")] = None,
    gradient_checkpointing: Annotated[
        bool | None, typer.Option("--gradient-checkpointing", help="Recompute the decoder's layers in backward.")
    ] = None,
    lora: Annotated[int | None, typer.Option(help="Train an adapter of this rank instead of all weights.")] = None,
    lora_layers: Annotated[
        str | None, typer.Option(help="Layers that get the adapter, as 0,2,5 or 8-23; default: all.")
    ] = None,
    freeze_encoder: Annotated[
        bool | None, typer.Option("--freeze-encoder", help="Train the decoder alone; documents are encoded once.")
    ] = None,
    memories: Annotated[
        str | None, typer.Option(help="Folder for encoded documents, to share; default: in the output.")
    ] = None,
    evidence: Annotated[
        float | None, typer.Option(help="Weight of a loss that draws a question's attention to its evidence.")
    ] = None,
    evidence_data: Annotated[
        str | None, typer.Option(help='Data with evidence ("spans"); default: the training data.')
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    trainer: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A field of transformers' TrainingArguments; can be given often."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model for long inputs. The same command continues where it stopped."""
    options = dict(locals())
    for name in ("output", "recipe", "as_json"):
        del options[name]
    for option, field in _FIELDS.items():
        options[field] = options.pop(option)
    options["layers"], options["heads"] = integers("--layers", layers), integers("--heads", heads)
    options["lora_layers"] = integers("--lora-layers", lora_layers)
    options["trainer"] = _parse_fields(trainer) if trainer else None
    quiet_libraries()
    from ..training import TrainingSettings, read_recipe, train

    fields = {"model": SMALL_MODEL, **({} if recipe is None else read_recipe(recipe).train)}
    given = {name: value for name, value in options.items() if value is not None}
    fields |= given | {"trainer": {**fields.get("trainer", {}), **given.get("trainer", {})}}
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


def recipes(as_json: AsJson = False) -> None:
    """List the recipes of `train` and `evaluate`: the rows of the paper's tables, and the package's own adapters."""
    from rich.table import Table

    from ..training.recipe import recipes as all_recipes

    if as_json:
        typer.echo(json.dumps({name: asdict(recipe) for name, recipe in all_recipes().items()}, indent=1))
        return
    table = Table("recipe", "the paper's table", "trained by", "tested with")
    for name, recipe in all_recipes().items():
        numbers = ", ".join(map(str, recipe.tables))
        table.add_row(name, numbers, str(recipe.train.get("method")), str(recipe.test.get("method", "")))
    messages.print(table)


def _parse_fields(fields: list[str]) -> dict[str, Any]:
    """Names and values from texts such as "adam_beta2=0.98"; values are read as YAML."""
    import yaml

    parsed = {}
    for field in fields:
        name, equals, value = field.partition("=")
        if not name or not equals:
            raise InputError(f"--trainer is {field!r}; expected KEY=VALUE, such as label_smoothing_factor=0.1")
        try:
            parsed[name] = _parse_scalar(value, yaml.safe_load(value))
        except yaml.YAMLError:
            raise InputError(f"--trainer is {field!r}; its value cannot be read: put it in quotation marks") from None
    return parsed


def _parse_scalar(text: str, value: Any) -> Any:
    """What YAML read from a text; but `no`, `on` and dates stay texts, and 1e-6 is a number."""
    is_word = isinstance(value, bool) and text.strip().lower() not in ("true", "false")
    if is_word or isinstance(value, date):
        return text.strip()
    return float(text) if isinstance(value, str) and _NUMBER.fullmatch(text.strip()) else value


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)e[-+]?\d+", re.IGNORECASE)
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
