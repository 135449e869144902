"""`unlimiformer train`: every method of the paper, and its baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UnlimiformerError
from ..utils.system import is_first_process
from .console import messages, quiet_libraries
from .options import AsJson


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the trained model; new, or to go on with.")],
    recipe: Annotated[str | None, typer.Option(help="A recipe's name or YAML file; other options change it.")] = None,
    model: Annotated[str | None, typer.Option(help="A name from `unlimiformer models`, a folder or a hub id.")] = None,
    data: Annotated[
        str | None, typer.Option(help="JSONL with document, question, answer; or a data set's name.")
    ] = None,
    validation: Annotated[str | None, typer.Option(help="The same, to validate with; the best model is kept.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="standard, chunked, random, retrieval, alternating, truncate, sled or memorizing."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Tokens each head sees.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens the encoder reads at once.")] = None,
    overlap: Annotated[float | None, typer.Option(help="Share of a window that neighbours read as well.")] = None,
    layer: Annotated[int | None, typer.Option(help="memorizing: the layer that retrieves, from 0.")] = None,
    gated: Annotated[bool | None, typer.Option(help="memorizing: learn a gate for each head.")] = None,
    question: Annotated[str | None, typer.Option(help="Where questions go: window (before each) or decoder.")] = None,
    form: Annotated[str | None, typer.Option(help="How a question is given, as '{question}'.")] = None,
    distractors: Annotated[int | None, typer.Option(help="Tokens of earlier documents that stand beside each.")] = None,
    source_limit: Annotated[int | None, typer.Option(help="Longest document in training, in tokens.")] = None,
    target_limit: Annotated[int | None, typer.Option(help="Longest answer in training, in tokens.")] = None,
    examples: Annotated[int | None, typer.Option(help="Train with so many examples only.")] = None,
    validation_examples: Annotated[int | None, typer.Option(help="Validate with so many only.")] = None,
    early_stop_unlimited: Annotated[
        bool | None, typer.Option("--early-stop-unlimited", help="Validate with all of each document.")
    ] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many validations without a better one.")] = None,
    validate_every: Annotated[int | None, typer.Option(help="In steps; after each epoch if not given.")] = None,
    new_tokens: Annotated[int | None, typer.Option(help="Longest answer in validation, in tokens.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples at once.")] = None,
    accumulation: Annotated[int | None, typer.Option(help="Batches a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option()] = None,
    schedule: Annotated[str | None, typer.Option(help="linear, cosine, constant or constant_with_warmup.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps.")] = None,
    weight_decay: Annotated[float | None, typer.Option()] = None,
    dropout: Annotated[float | None, typer.Option(help="Instead of the model's own.")] = None,
    bfloat16: Annotated[bool | None, typer.Option("--bfloat16", help="Compute in bfloat16 where that is safe.")] = None,
    gradient_checkpointing: Annotated[
        bool | None, typer.Option("--gradient-checkpointing", help="Also compute the decoder's layers twice.")
    ] = None,
    lora: Annotated[int | None, typer.Option(help="Train an adapter of this rank instead of all weights.")] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model for long inputs. The same command again goes on where it stopped."""
    given = {name: value for name, value in locals().items() if name not in ("output", "recipe", "as_json")}
    quiet_libraries()
    try:
        from ..training import TrainingSettings, read_recipe, train
    except ImportError as error:
        raise UnlimiformerError(f"training needs more packages ({error.name}); install unlimiformer[train]") from None
    told = read_recipe(recipe) if recipe is not None else {}
    told |= {name: value for name, value in given.items() if value is not None}
    settings = TrainingSettings.of(told, f"recipe {recipe}" if recipe else "the command")
    figures = train(settings, output, log=lambda line: messages.print(line), callback=_watcher())
    if not is_first_process():
        return
    if as_json:
        typer.echo(json.dumps({"output": str(output), **figures}, indent=1))
        return
    messages.print(f"wrote {output}: {figures.pop('steps')} steps")
    for name, value in figures.items():
        messages.print(f"{name.removeprefix('eval_').replace('_', ' ')}: {value:,.3f}")


def _watcher() -> Any:
    """A callback that says how far the training is, and what it measures."""
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            shown = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
            shown = {name: value for name, value in shown.items() if "per_second" not in name and "runtime" not in name}
            figures = ", ".join(f"{name.removeprefix('eval_')} {value:.4g}" for name, value in shown.items())
            messages.print(f"step {state.global_step} of {state.max_steps}: {figures}", style="dim")

    return Watcher()
