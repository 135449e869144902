"""One training from its settings: loads, trains, validates, keeps. The same call again goes on where it stopped."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch
from transformers import EarlyStoppingCallback, PrinterCallback, Seq2SeqTrainingArguments, TrainerCallback
from transformers.trainer_utils import set_seed

from ..config import UnlimiformerConfig
from ..engines import CausalEngine
from ..errors import UnlimiformerError
from ..evaluation.metrics.rouge import rouge, scorer
from ..hub.loading import load
from ..hub.saved_settings import FILE as USAGE
from ..hub.saved_settings import usage_text
from ..model import Unlimiformer
from ..qa import QuestionFormat
from ..tasks import examples
from ..utils.files import atomic_write
from .causal_trainer import CausalTrainer
from .dataset import LengthLimits, Seq2SeqDataset, whole
from .seq2seq_trainer import UnlimiformerTrainer, decoded
from .settings import SETTINGS, TrainingSettings
from .strategies import STRATEGIES, Memorizing, Strategy

Log = Callable[[str], None]
_METRICS, _RESULT, _WRITTEN_LAST = "metrics.jsonl", "result.json", "trainer_state.json"
_LORA_TARGETS = (
    *("q", "k", "v", "o", "q_proj", "k_proj", "v_proj", "o_proj", "out_proj"),  # attention, by the families' names
    *("wi", "wi_0", "wi_1", "wo", "fc1", "fc2", "gate_proj", "up_proj", "down_proj"),  # what is between
)


def train(
    settings: TrainingSettings, output: Path, log: Log = lambda line: None, callback: Any = None
) -> dict[str, Any]:
    """Trains a model into a folder and returns the last figures.

    The folder holds the model, its settings, `metrics.jsonl` and checkpoints. `say` is told in words what goes on;
    `watch` is a callback of Hugging Face's trainer. A training that is finished is not trained further. Started by
    `torchrun` or `accelerate launch`, processes share each step; the first of them writes and speaks.
    """
    args = _arguments(settings, output)
    first = args.process_index == 0
    if not first:
        log, callback = (lambda line: None), None
    with args.main_process_first():
        resumed = _opened(settings, output, first)
    args.distributed_state.wait_for_everyone()  # the folder is as it was, until all have seen it
    if (output / _RESULT).is_file():
        log(f"{output} is finished")
        return json.loads((output / _RESULT).read_text())
    set_seed(settings.seed)
    wrapped = _wrapped(settings)
    try:
        journal, pauses = MetricsLog(output / _METRICS), RngSnapshot()
        callbacks = [journal, pauses, *([callback] if callback is not None else [])]
        if settings.patience is not None:
            callbacks.append(EarlyStoppingCallback(settings.patience))
        strategy = _strategy(settings, wrapped)
        trainer = _trainer(settings, args, wrapped, strategy, callbacks, log)
        trainer.remove_callback(PrinterCallback)  # the library does not print; `watch` may
        if first:
            output.mkdir(parents=True, exist_ok=True)
            atomic_write(output / SETTINGS, settings.to_json())
        if resumed is not None and first:
            log(f"going on from {resumed}")
            journal.cut(int(resumed.name.rpartition("-")[2]))
        try:
            trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
        except KeyboardInterrupt:
            if args.world_size == 1:  # several may not stand at the same step: they go back to a checkpoint
                pauses.keep(trainer)
            raise
        trainer.save_model(str(output))
        if first:
            atomic_write(output / USAGE, _usage(settings, wrapped, strategy))
        figures = trainer.evaluate() if settings.validation is not None else {}
        figures = {"steps": trainer.state.global_step, **figures}
        if first:
            atomic_write(output / _RESULT, json.dumps(figures, indent=1) + "\n")
        return figures
    finally:
        wrapped.remove()


def _usage(settings: TrainingSettings, wrapped: Unlimiformer, strategy: Strategy) -> str:
    """How the model is used as it was trained: read as here, and with what its tests saw."""
    reads = {"window": wrapped.window, "overlap": settings.overlap}
    if isinstance(wrapped.engine, CausalEngine):
        return usage_text({**reads, "top_k": wrapped.top_k}, asdict(QuestionFormat()))
    return usage_text({**reads, **strategy.settings()}, asdict(QuestionFormat(settings.question, settings.form)))


def _opened(settings: TrainingSettings, output: Path, first: bool) -> Path | None:
    """The last whole checkpoint in the folder, if it is this training's; the first process removes half ones."""
    kept = output / SETTINGS
    if not kept.is_file():
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise UnlimiformerError(f"{output} is in use and holds no training; expected an empty or a new folder")
        return None
    if kept.read_text() != settings.to_json():
        raise UnlimiformerError(
            f"{output} has another training (see {SETTINGS}); expected the same settings, to go on: "
            "give another folder, or remove that one"
        )
    checkpoints = sorted(output.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    whole = [path for path in checkpoints if (path / _WRITTEN_LAST).is_file()]
    for path in set(checkpoints) - set(whole) if first else ():
        shutil.rmtree(path)
    return whole[-1] if whole else None


def _wrapped(settings: TrainingSettings) -> Unlimiformer:
    model, tokenizer = load(settings.model, torch.float32, dropout=settings.dropout)  # half precision loses updates
    if settings.lora is not None:
        model = _with_lora(model, settings.lora, settings.model)
    config = UnlimiformerConfig(top_k=settings.top_k, window=settings.window, overlap=settings.overlap)
    return Unlimiformer(model, tokenizer, config)


def _with_lora(model: Any, rank: int, name: str) -> Any:
    try:
        import peft
    except ImportError:
        raise UnlimiformerError("LoRA needs the package `peft`; install unlimiformer[lora]") from None
    present = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    targets = [name for name in _LORA_TARGETS if name in present]
    if not targets:
        raise UnlimiformerError(f"{type(model).__name__} has none of {', '.join(_LORA_TARGETS)}; LoRA cannot be added")
    kind = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    model.name_or_path = name  # the adapter says whose it is: by a catalogue's name, not by a cache's folder
    return peft.get_peft_model(model, peft.LoraConfig(kind, r=rank, lora_alpha=2 * rank, target_modules=targets))


def _strategy(settings: TrainingSettings, wrapped: Unlimiformer) -> Strategy:
    kind = STRATEGIES[settings.method]
    if kind is Memorizing:
        return Memorizing(wrapped.top_k, settings.layer, settings.gated)
    return kind(wrapped.top_k)


def _trainer(
    settings: TrainingSettings,
    args: Seq2SeqTrainingArguments,
    wrapped: Unlimiformer,
    strategy: Strategy,
    callbacks: list[Any],
    log: Log,
) -> Any:
    taught = examples(settings.data, "train", settings.examples)
    tested = None
    if settings.validation is not None:
        tested = examples(settings.validation, "validation", settings.validation_examples)
    limits, unlimited = LengthLimits(settings.source_limit, settings.target_limit), LengthLimits(None, None)
    if isinstance(wrapped.engine, CausalEngine):
        _refuse_for_decoders(settings)
        return CausalTrainer(wrapped, limits, args, taught, tested, callbacks)
    settled = (wrapped.tokenizer, QuestionFormat(settings.question, settings.form))
    train_set = Seq2SeqDataset(taught, *settled, limits, wrapped.window, strategy.inputs)
    log(f"{len(train_set):,} training examples")
    if train_set.cut:
        log(f"{train_set.cut} documents are longer than {settings.source_limit:,} tokens and were cut to that length")
    validation: dict[str, Any] = {}
    if tested is not None:
        inputs = whole if strategy.sees_all or settings.early_stop_unlimited else strategy.inputs
        validation["eval_dataset"] = Seq2SeqDataset(tested, *settled, unlimited, wrapped.window, inputs)
        scorer()  # missing packages are missed now, not after an epoch
        validation["compute_metrics"] = partial(_scores, wrapped.tokenizer)
    generation = {"max_new_tokens": settings.new_tokens, "do_sample": False, "num_beams": 1}
    return UnlimiformerTrainer(
        wrapped,
        strategy,
        args,
        generation,
        settings.distractors,
        train_dataset=train_set,
        callbacks=callbacks,
        **validation,
    )


def _refuse_for_decoders(settings: TrainingSettings) -> None:
    if settings.method != "retrieval":
        raise UnlimiformerError(
            f"method is {settings.method!r}; a decoder-only model is trained with 'retrieval': give that"
        )
    plain = {each.name: each.default for each in fields(TrainingSettings)}
    for name in ("question", "form", "distractors", "early_stop_unlimited", "new_tokens"):
        if getattr(settings, name) != plain[name]:
            raise UnlimiformerError(
                f"{name} is {getattr(settings, name)!r}; a decoder-only model is asked behind the text and validated "
                "by its loss over all of each document: leave it out"
            )


def _scores(tokenizer: Any, predicted: Any) -> dict[str, float]:
    return rouge(decoded(predicted.predictions, tokenizer), decoded(predicted.label_ids, tokenizer))


def _arguments(settings: TrainingSettings, output: Path) -> Seq2SeqTrainingArguments:
    validates = settings.validation is not None
    when = "no" if not validates else "epoch" if settings.validate_every is None else "steps"
    return Seq2SeqTrainingArguments(
        output_dir=str(output),
        use_cpu=not torch.accelerator.is_available(),  # else processes on CPUs would train one by one
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
        restore_callback_states_from_checkpoint=True,
        metric_for_best_model="mean" if validates else None,
        greater_is_better=True if validates else None,
        predict_with_generate=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=10,
        report_to=["tensorboard"] if find_spec("tensorboard") else [],
        disable_tqdm=True,
    )


class MetricsLog(TrainerCallback):
    """Writes what the trainer logs to a file, a JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def cut(self, step: int) -> None:
        """Forgets what was logged after a step: it will be logged again."""
        if self._path.is_file():
            lines = [line for line in self._path.read_text().splitlines() if json.loads(line)["step"] <= step]
            atomic_write(self._path, "".join(f"{line}\n" for line in lines))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """One line."""
        if state.is_world_process_zero:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")


class RngSnapshot(TrainerCallback):
    """Remembers what chance was like after the last whole step, so that an interrupted training loses nothing."""

    def __init__(self) -> None:
        self._chance: tuple[Any, Any, Any] | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remembers."""
        self._chance = (random.getstate(), numpy.random.get_state(), torch.get_rng_state())

    def keep(self, trainer: Any) -> None:
        """Writes a checkpoint of that moment; what began of the next step will be done again."""
        if self._chance is None or (Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}").exists():
            return
        python, arrays, tensors = self._chance
        random.setstate(python)
        numpy.random.set_state(arrays)
        torch.set_rng_state(tensors)
        trainer._save_checkpoint(trainer.model, trial=None)
