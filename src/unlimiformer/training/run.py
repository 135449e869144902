"""One training run from its settings: load the model, train, validate, save. The same call again resumes the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, PrinterCallback, Seq2SeqTrainingArguments, TrainerState
from transformers.trainer_utils import set_seed

from ..config import UnlimiformerConfig
from ..errors import InputError, UnsupportedModelError
from ..hub.loading import load
from ..hub.saved_settings import FILE as SAVED_SETTINGS_FILE
from ..hub.saved_settings import saved_settings_text
from ..model import Unlimiformer
from ..qa import QuestionFormat
from ..tasks import Example, examples
from ..utils.files import atomic_write
from ..utils.jsonl import JSON_ERRORS
from ..utils.optional import require
from .callbacks import MetricsLog, RngSnapshot
from .causal_trainer import CausalTrainer, SharedDocumentTrainer
from .dataset import LengthLimits, Seq2SeqDataset, whole_document
from .evidence import EvidenceLoss
from .frozen_encoder import FrozenEncoder
from .seq2seq_trainer import UnlimiformerTrainer
from .settings import SETTINGS_FILE, TrainingSettings
from .strategies import STRATEGIES, Memorizing, Strategy
from .validation import Validation, validation_metric

Log = Callable[[str], None]

_METRICS_FILE, _RESULT_FILE = "metrics.jsonl", "result.json"
_MEMORIES = "memories"
_STATE_FILE = "trainer_state.json"  # the trainer writes it last: a checkpoint without it is incomplete
_LORA_TARGETS = (
    *("q", "k", "v", "o", "q_proj", "k_proj", "v_proj", "o_proj", "out_proj"),  # attention, in all families
    *("wi", "wi_0", "wi_1", "wo", "fc1", "fc2", "gate_proj", "up_proj", "down_proj"),  # feed-forward layers
)
_CAUSAL_TRAINERS = {"retrieval": CausalTrainer, "standard": SharedDocumentTrainer}
_ENCODER_DECODER_SETTINGS = (
    *("question", "form", "summary_prompt", "distractors"),
    *("freeze_encoder", "memories", "evidence", "evidence_data"),
    *("early_stop_unlimited", "validation_limit", "metric", "new_tokens", "num_beams"),
)


def train(
    settings: TrainingSettings, output: Path, log: Log = lambda line: None, callback: Any = None
) -> dict[str, Any]:
    """Train a model into a folder and return the final metrics.

    The folder gets the model, its settings, `metrics.jsonl` and checkpoints. A run that was stopped resumes from its
    last checkpoint; for a finished run the saved metrics are returned. Processes started by `torchrun` or
    `accelerate launch` share each step; only the main process writes and logs.

    Parameters
    ----------
    settings : everything that decides the result.
    output : a new or empty folder, or the folder of a run with the same settings.
    log : called with each progress message.
    callback : a `TrainerCallback` for the run, for example to display progress.
    """
    args = _build_arguments(settings, output)
    is_main = args.process_index == 0
    if not is_main:
        log, callback = (lambda line: None), None
    with args.main_process_first():
        checkpoint = _find_checkpoint(settings, output, remove_incomplete=is_main)
    args.distributed_state.wait_for_everyone()  # the folder may change only after all processes have checked it
    if (output / _RESULT_FILE).is_file():
        log(f"{output} is finished")
        return _read_metrics(output / _RESULT_FILE)
    set_seed(settings.seed)
    wrapped = load_model(settings)
    try:
        strategy = _build_strategy(settings, wrapped)
        metrics_log, snapshot = MetricsLog(output / _METRICS_FILE), RngSnapshot()
        callbacks = [metrics_log, snapshot, *([callback] if callback is not None else [])]
        trainer = _build_trainer(settings, args, wrapped, strategy, callbacks=callbacks, log=log)
        if is_main:
            output.mkdir(parents=True, exist_ok=True)
            atomic_write(output / SETTINGS_FILE, settings.to_json())
        if is_main and checkpoint is not None:
            log(f"resuming from {checkpoint}")
            metrics_log.truncate(_step_number(checkpoint))
        _fit(trainer, checkpoint, snapshot)
        trainer.save_model(str(output))
        if is_main:
            atomic_write(output / SAVED_SETTINGS_FILE, _build_saved_settings(settings, wrapped, strategy))
        metrics = trainer.evaluate() if settings.validation is not None else {}
        metrics = {"steps": trainer.state.global_step, **metrics}
        if is_main:
            atomic_write(output / _RESULT_FILE, json.dumps(metrics, indent=1) + "\n")
        return metrics
    finally:
        wrapped.remove()


def _read_metrics(file: Path) -> dict[str, Any]:
    try:
        metrics = json.loads(file.read_bytes())
    except JSON_ERRORS:
        metrics = None
    if not isinstance(metrics, dict):
        raise InputError(
            f"{file} is damaged; expected the metrics of a finished training: remove it, and the same "
            "command ends the training again"
        )
    return metrics


def load_model(settings: TrainingSettings) -> Unlimiformer:
    """Load and wrap the model that the settings name, with an adapter to train if they ask for LoRA."""
    frozen = settings.lora is not None  # weights that are updated would lose small updates in half precision
    dtype = torch.bfloat16 if settings.bfloat16 and frozen else torch.float32
    model, tokenizer = load(settings.model, dtype, dropout=settings.dropout)
    if settings.lora is not None:
        model = _add_lora(model, settings.lora, settings)
    names = ("top_k", "window", "overlap", "layers", "heads")
    config = UnlimiformerConfig(**{name: getattr(settings, name) for name in names})
    return Unlimiformer(model, tokenizer, config)


def _add_lora(model: Any, rank: int, settings: TrainingSettings) -> Any:
    peft = require("peft", "lora", "LoRA")
    present = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    targets = [name for name in _LORA_TARGETS if name in present]
    if not targets:
        raise UnsupportedModelError(
            f"{type(model).__name__} has none of the modules {', '.join(_LORA_TARGETS)}; LoRA cannot be added: "
            "train all weights"
        )
    task = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    model.name_or_path = settings.model  # the adapter stores the name that was given, not the folder of a local cache
    layers, count = settings.lora_layers, model.config.num_hidden_layers
    if layers is not None and (not layers or max(layers) >= count):
        raise InputError(f"lora_layers is {list(layers)}; expected some of the model's {count} layers, counted from 0")
    config = peft.LoraConfig(
        task,
        r=rank,
        lora_alpha=2 * rank,
        target_modules=targets,
        layers_to_transform=None if layers is None else list(layers),
    )
    return peft.get_peft_model(model, config)


def _find_checkpoint(settings: TrainingSettings, output: Path, remove_incomplete: bool) -> Path | None:
    """Return the last complete checkpoint in the folder; refuse a folder that is not of this run."""
    settings_file = output / SETTINGS_FILE
    if not settings_file.is_file():
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise InputError(f"{output} is in use and holds no training; expected an empty or a new folder")
        return None
    if not settings.equal_json(settings_file.read_bytes()):
        raise InputError(
            f"{output} has another training (see {SETTINGS_FILE}); expected the same settings, to resume it: "
            "give another folder, or remove that one"
        )
    checkpoints = sorted(output.glob("checkpoint-*"), key=_step_number)
    complete = [path for path in checkpoints if (path / _STATE_FILE).is_file()]
    if remove_incomplete:
        for path in set(checkpoints) - set(complete):
            shutil.rmtree(path)
    return complete[-1] if complete else None


def _step_number(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _build_strategy(settings: TrainingSettings, wrapped: Unlimiformer) -> Strategy:
    strategy_class = STRATEGIES[settings.method]
    if strategy_class is Memorizing:
        return Memorizing(wrapped.top_k, settings.layer, settings.gated)
    return strategy_class(wrapped.top_k, wrapped.config.layers, wrapped.config.heads)


def _build_trainer(
    settings: TrainingSettings,
    args: Seq2SeqTrainingArguments,
    wrapped: Unlimiformer,
    strategy: Strategy,
    *,
    callbacks: list[Any],
    log: Log,
) -> Any:
    if settings.patience is not None:
        callbacks = [*callbacks, EarlyStoppingCallback(settings.patience)]
    train_examples = examples(settings.data, "train", settings.examples)
    eval_examples = None
    if settings.validation is not None:
        eval_examples = examples(settings.validation, "validation", settings.validation_examples)
    if any(example.answer is None for example in (*train_examples, *(eval_examples or ()))):
        raise InputError(f"the data have questions without an answer; expected another split of {settings.data}")
    if wrapped.engine.kind == "decoder-only":
        _check_causal_settings(settings)
        limits = LengthLimits(settings.source_limit, settings.target_limit)
        trainer_class = _CAUSAL_TRAINERS[settings.method]
        trainer: Any = trainer_class(wrapped, limits, args, train_examples, eval_examples, callbacks)
    else:
        validation = None if eval_examples is None else Validation.of(settings, eval_examples)
        train_dataset, eval_dataset = _build_datasets(settings, wrapped, strategy, train_examples, validation)
        _log_sizes(train_dataset, settings, log)
        trainer = UnlimiformerTrainer(
            wrapped,
            strategy,
            args,
            generation={} if validation is None else validation.generation,
            distractors=settings.distractors,
            frozen_encoder=_freeze_encoder(settings, wrapped, args),
            evidence_loss=_build_evidence_loss(settings, wrapped, train_examples),
            evidence_weight=settings.evidence,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            compute_metrics=None if validation is None else partial(validation.score, wrapped.tokenizer),
            callbacks=callbacks,
        )
    trainer.remove_callback(PrinterCallback)  # the library prints nothing itself
    return trainer


def _build_datasets(
    settings: TrainingSettings,
    wrapped: Unlimiformer,
    strategy: Strategy,
    train_examples: Sequence[Example],
    validation: Validation | None,
) -> tuple[Seq2SeqDataset, Seq2SeqDataset | None]:
    """Tokenize the examples."""
    build = partial(
        Seq2SeqDataset,
        tokenizer=wrapped.tokenizer,
        question_format=replace(_question_format(settings), place=strategy.question_place or settings.question),
        window=wrapped.window,
    )
    limits = LengthLimits(settings.source_limit if strategy.limits_source else None, settings.target_limit)
    train_dataset = build(train_examples, limits=limits, split_document=strategy.inputs)
    if validation is None:
        return train_dataset, None
    full_input = strategy.validates_on_full_input or settings.early_stop_unlimited
    split_document = whole_document if full_input else strategy.inputs
    limits = LengthLimits(settings.validation_limit, None)
    return train_dataset, build(validation.examples, limits=limits, split_document=split_document)


def _freeze_encoder(settings: TrainingSettings, wrapped: Unlimiformer, args: Any) -> FrozenEncoder | None:
    if not settings.freeze_encoder:
        return None
    return FrozenEncoder(wrapped, Path(settings.memories or Path(args.output_dir) / _MEMORIES))


def _build_evidence_loss(
    settings: TrainingSettings, wrapped: Unlimiformer, train_examples: Sequence[Example]
) -> EvidenceLoss | None:
    if not settings.evidence:
        return None
    data = settings.evidence_data
    return EvidenceLoss(
        wrapped,
        train_examples if data is None else examples(data, "train", settings.examples),
        _question_format(settings),
        batch_size=settings.batch_size,
        source_limit=settings.source_limit,
        seed=settings.seed,
    )


def _question_format(settings: TrainingSettings) -> QuestionFormat:
    return QuestionFormat(settings.question, settings.form, settings.summary_prompt)


def _check_causal_settings(settings: TrainingSettings) -> None:
    """Refuse settings that have no meaning for decoder-only models."""
    if settings.method not in _CAUSAL_TRAINERS:
        raise InputError(
            f"method is {settings.method!r}; expected {' or '.join(_CAUSAL_TRAINERS)} for a decoder-only model, "
            "which reads what it selects of a document, or all of a short one"
        )
    defaults = {field.name: field.default for field in fields(TrainingSettings)}
    for name in _ENCODER_DECODER_SETTINGS:
        if getattr(settings, name) != defaults[name]:
            raise InputError(
                f"{name} is {getattr(settings, name)!r}; a decoder-only model has the question after the text and is "
                "validated by its loss on whole documents: leave it out"
            )


def _log_sizes(dataset: Seq2SeqDataset, settings: TrainingSettings, log: Log) -> None:
    log(f"{len(dataset):,} training examples")
    if dataset.truncated_documents:
        log(
            f"{dataset.truncated_documents} documents are longer than {settings.source_limit:,} tokens and were cut to "
            "that length"
        )


def _fit(trainer: Any, checkpoint: Path | None, snapshot: RngSnapshot) -> None:
    """Train to the end; when interrupted by Ctrl-C, save the last complete step first.

    If the checkpoint is of the last step, its model is loaded, or the best one.
    """
    if checkpoint is not None:
        state = TrainerState.load_from_json(str(checkpoint / _STATE_FILE))
        if state.stateful_callbacks.get("TrainerControl", {}).get("args", {}).get("should_training_stop"):
            trainer.state = state
            if state.best_model_checkpoint is not None:
                trainer._load_best_model()
            else:
                trainer._load_from_checkpoint(str(checkpoint))
            return
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except KeyboardInterrupt:
        if trainer.args.world_size == 1:  # several processes may be at different steps
            snapshot.save_checkpoint(trainer)
        raise


def _build_saved_settings(settings: TrainingSettings, wrapped: Unlimiformer, strategy: Strategy) -> str:
    """Return the text of the file from which a wrapper of the trained model takes its settings."""
    encoding = {"window": wrapped.window, "overlap": settings.overlap}
    if wrapped.engine.kind == "decoder-only":
        own = {"prompt_examples": False} if settings.method == "standard" else {"top_k": wrapped.top_k}
        return saved_settings_text({**encoding, **own}, asdict(QuestionFormat()))
    return saved_settings_text({**encoding, **strategy.settings()}, asdict(_question_format(settings)))


def _build_arguments(settings: TrainingSettings, output: Path) -> Seq2SeqTrainingArguments:
    validates = settings.validation is not None
    interval = "epoch" if settings.validate_every is None else "steps"
    arguments: dict[str, Any] = {
        "use_cpu": not torch.accelerator.is_available(),  # otherwise processes on CPUs would not train together
        "num_train_epochs": settings.epochs,
        "max_steps": settings.steps or -1,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": 1,
        "gradient_accumulation_steps": settings.accumulation,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.schedule,
        "warmup_steps": settings.warmup if settings.warmup < 1 else int(settings.warmup),
        "weight_decay": settings.weight_decay,
        "bf16": settings.bfloat16,
        "seed": settings.seed,
        "eval_strategy": interval if validates else "no",
        "eval_steps": settings.validate_every,
        "save_strategy": interval,
        "save_steps": settings.validate_every or 500,
        "save_total_limit": 2,
        "load_best_model_at_end": validates,
        "restore_callback_states_from_checkpoint": True,
        "metric_for_best_model": validation_metric(settings) if validates else None,
        "greater_is_better": True if validates else None,
        "predict_with_generate": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "logging_steps": 10,
        "report_to": ["tensorboard"] if find_spec("tensorboard") else [],
        "disable_tqdm": True,
    }
    if settings.gradient_checkpointing:
        arguments |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    try:
        return Seq2SeqTrainingArguments(output_dir=str(output), **(arguments | settings.trainer))
    except (TypeError, ValueError) as error:
        if not settings.trainer:
            raise
        raise InputError(
            f"trainer is {settings.trainer}, and transformers does not take it: {error}; expected values of "
            "Seq2SeqTrainingArguments"
        ) from None
