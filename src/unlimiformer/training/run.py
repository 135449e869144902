"""One training from its settings: loads, trains, validates, keeps. The same call again goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, PrinterCallback, Seq2SeqTrainingArguments, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint, set_seed

from ..asking import Asking
from ..config import UnlimiformerConfig
from ..engines import DecoderOnlyEngine
from ..errors import UnlimiformerError
from ..evaluation.rouge import rouge
from ..loading import load
from ..model import Unlimiformer
from .causal import CausalTrainer
from .data import examples
from .features import Features, Limits, whole
from .settings import TrainingSettings
from .strategies import STRATEGIES, Memorizing, Strategy
from .trainer import UnlimiformerTrainer, decoded

Say = Callable[[str], None]
_SETTINGS, _METRICS = "training.json", "metrics.jsonl"
_LORA_TARGETS = (
    *("q", "k", "v", "o", "q_proj", "k_proj", "v_proj", "o_proj", "out_proj"),  # attention, by the families' names
    *("wi", "wi_0", "wi_1", "wo", "fc1", "fc2", "gate_proj", "up_proj", "down_proj"),  # what is between
)


def train(settings: TrainingSettings, output: Path, say: Say = lambda line: None, watch: Any = None) -> dict[str, Any]:
    """Trains a model into a folder and returns the last figures.

    The folder holds the model, its settings, `metrics.jsonl` and checkpoints. `say` is told in words what goes on;
    `watch` is a callback of Hugging Face's trainer.
    """
    resumed = _opened(settings, output)
    set_seed(settings.seed)
    wrapped = _wrapped(settings)
    strategy = strategy_of(settings, wrapped)
    callbacks = [Journal(output / _METRICS), *([watch] if watch is not None else [])]
    if settings.patience is not None:
        callbacks.append(EarlyStoppingCallback(settings.patience))
    trainer = _trainer(settings, output, wrapped, strategy, callbacks, say)
    trainer.remove_callback(PrinterCallback)  # the library does not print; `watch` may
    if resumed:
        say(f"going on from {resumed}")
    trainer.train(resume_from_checkpoint=resumed)
    trainer.save_model(str(output))
    figures = trainer.evaluate() if settings.validation is not None else {}
    wrapped.remove()
    return {"steps": trainer.state.global_step, **figures}


def _opened(settings: TrainingSettings, output: Path) -> str | None:
    """Makes the folder; the last checkpoint in it, if it is this training's."""
    kept = output / _SETTINGS
    if kept.is_file():
        if kept.read_text() != settings.to_json():
            raise UnlimiformerError(
                f"{output} has another training (see {_SETTINGS}); expected the same settings, to go on: "
                "give another folder, or remove that one"
            )
        return get_last_checkpoint(str(output))
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UnlimiformerError(f"{output} is in use and holds no training; expected an empty or a new folder")
    output.mkdir(parents=True, exist_ok=True)
    kept.write_text(settings.to_json())
    return None


def _wrapped(settings: TrainingSettings) -> Unlimiformer:
    model, tokenizer = load(settings.model)
    if settings.lora is not None:
        model = _with_lora(model, settings.lora)
    config = UnlimiformerConfig(top_k=settings.top_k, window=settings.window, overlap=settings.overlap)
    return Unlimiformer(model, tokenizer, config)


def _with_lora(model: Any, rank: int) -> Any:
    try:
        import peft
    except ImportError:
        raise UnlimiformerError("LoRA needs the package `peft`; install unlimiformer[lora]") from None
    present = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    targets = [name for name in _LORA_TARGETS if name in present]
    if not targets:
        raise UnlimiformerError(f"{type(model).__name__} has none of {', '.join(_LORA_TARGETS)}; LoRA cannot be added")
    kind = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    return peft.get_peft_model(model, peft.LoraConfig(kind, r=rank, lora_alpha=2 * rank, target_modules=targets))


def strategy_of(settings: TrainingSettings, wrapped: Unlimiformer) -> Strategy:
    """The method's strategy, for a wrapped model."""
    kind = STRATEGIES[settings.method]
    if kind is Memorizing:
        return Memorizing(wrapped.top_k, settings.layer, settings.gated)
    return kind(wrapped.top_k)


def _trainer(
    settings: TrainingSettings,
    output: Path,
    wrapped: Unlimiformer,
    strategy: Strategy,
    callbacks: list[Any],
    say: Say,
) -> Any:
    args = _arguments(settings, output)
    taught = examples(settings.data, "train", settings.examples)
    tested = None
    if settings.validation is not None:
        tested = examples(settings.validation, "validation", settings.validation_examples)
    limits, unlimited = Limits(settings.source_limit, settings.target_limit), Limits(None, None)
    if isinstance(wrapped.engine, DecoderOnlyEngine):
        if settings.method != "retrieval":
            raise UnlimiformerError(
                f"method is {settings.method!r}; a decoder-only model is trained with 'retrieval': give that"
            )
        return CausalTrainer(wrapped, limits, args, taught, tested, callbacks)
    settled = (wrapped.tokenizer, Asking(settings.question, settings.form))
    train_set = Features(taught, *settled, limits, wrapped.window, strategy.inputs)
    say(f"{len(train_set):,} training examples")
    if train_set.cut:
        say(f"{train_set.cut} documents are longer than {settings.source_limit:,} tokens and were cut to that length")
    validation: dict[str, Any] = {}
    if tested is not None:
        inputs = whole if strategy.sees_all or settings.early_stop_unlimited else strategy.inputs
        validation["eval_dataset"] = Features(tested, *settled, unlimited, wrapped.window, inputs)
        validation["compute_metrics"] = partial(_scores, wrapped.tokenizer)
    generation = {"max_new_tokens": settings.new_tokens, "do_sample": False, "num_beams": 1}
    return UnlimiformerTrainer(
        wrapped, strategy, args, generation, train_dataset=train_set, callbacks=callbacks, **validation
    )


def _scores(tokenizer: Any, predicted: Any) -> dict[str, float]:
    return rouge(decoded(predicted.predictions, tokenizer), decoded(predicted.label_ids, tokenizer))


def _arguments(settings: TrainingSettings, output: Path) -> Seq2SeqTrainingArguments:
    validates = settings.validation is not None
    when = "no" if not validates else "epoch" if settings.validate_every is None else "steps"
    return Seq2SeqTrainingArguments(
        output_dir=str(output),
        num_train_epochs=settings.epochs,
        max_steps=settings.steps or -1,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=settings.accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        bf16=settings.bfloat16,
        gradient_checkpointing=settings.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if settings.gradient_checkpointing else None,
        seed=settings.seed,
        eval_strategy=when,
        eval_steps=settings.validate_every,
        save_strategy=when if validates else "epoch" if settings.validate_every is None else "steps",
        save_steps=settings.validate_every or 500,
        save_total_limit=2,
        load_best_model_at_end=validates,
        metric_for_best_model="rouge" if validates else None,
        greater_is_better=True if validates else None,
        predict_with_generate=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=10,
        report_to=["tensorboard"] if find_spec("tensorboard") else [],
        disable_tqdm=True,
    )


class Journal(TrainerCallback):
    """Writes what the trainer logs to a file, a JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """One line."""
        if state.is_world_process_zero:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")
