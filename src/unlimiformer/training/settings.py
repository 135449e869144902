"""Settings of a training run, from a recipe or from arguments; saved next to the trained model."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from ..errors import InputError
from ..qa import PLACES, QuestionFormat
from ..utils.jsonl import JSON_ERRORS
from ..utils.value_types import check_types
from .strategies import STRATEGIES

SETTINGS_FILE = "training.json"
"""Name of the settings file in the folder of a run."""
SCHEDULES = ("linear", "cosine", "constant", "constant_with_warmup")

METRICS = ("rouge", "f1", "exact_match")
"""Metrics that can choose the best checkpoint; of ROUGE it is the geometric mean."""

_FLOATS = ("epochs", "learning_rate", "weight_decay", "overlap", "dropout", "warmup", "evidence")
_SMALLEST = {
    "distractors": 0,
    "source_limit": 1,
    "target_limit": 2,
    "batch_size": 1,
    "accumulation": 1,
}
_SMALLEST_OPTIONAL = {
    "top_k": 1,
    "window": 2,
    "examples": 1,
    "validation_examples": 1,
    "patience": 1,
    "steps": 1,
    "validate_every": 1,
    "lora": 1,
    "new_tokens": 1,
    "validation_limit": 1,
    "num_beams": 1,
}


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that decides the result of a training run. Limits are numbers of tokens.

    Parameters
    ----------
    model : name, folder or hub id of the model to start from.
    data, validation : sources of examples, see `tasks.loading`. With validation data the best checkpoint is kept.
    method : name of a strategy, a key of `STRATEGIES`.
    top_k, window, overlap, layers, heads : settings of the wrapper; None for the model's own.
    layer, gated : for the method "memorizing".
    question, form, summary_prompt : where questions go and how they are worded, see `QuestionFormat`.
    distractors : number of tokens of earlier documents whose states are shown next to each document.
    source_limit, target_limit : longest document and answer in training. Chunked training has no longest document.
    validation_limit : longest document in validation; None for all of it.
    examples, validation_examples : use at most this number of examples.
    early_stop_unlimited : validate on whole documents even if the method truncates them in training.
    patience : stop after this number of validations without a better result.
    validate_every : optimizer steps between validations; None validates after each epoch.
    metric : of validation, one of `METRICS`; None for that of the validation data's task, or F1.
    new_tokens : longest generated answer in validation; None for the task's, or 128.
    num_beams : beams in validation; None for the model's own setting.
    steps : optimizer steps; replaces `epochs`.
    accumulation : batches for one optimizer step.
    warmup : steps in which the learning rate rises; below 1, their share of all steps.
    dropout : replaces the model's own rate.
    lora : rank of an adapter to train instead of all weights.
    lora_layers : layers that get the adapter; None for all.
    freeze_encoder : train the decoder alone; every document is encoded once and then read from disk.
    memories : folder for the encoded documents, which several trainings may share; None for one in the run's folder.
    evidence : weight of a loss that draws the attention of questions to where their answers are; 0 for none.
    evidence_data : sources whose questions have evidence; None for `data`.
    trainer : further fields of `transformers.Seq2SeqTrainingArguments`; they replace what the other settings say.
    """

    model: str
    data: str
    validation: str | None = None
    method: str = "standard"
    top_k: int | None = None
    window: int | None = None
    overlap: float | None = None
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    layer: int | None = None
    gated: bool = False
    question: str = "window"
    form: str = "{question}\n"
    summary_prompt: str | None = None
    distractors: int = 0
    source_limit: int = 16384
    target_limit: int = 1024
    validation_limit: int | None = None
    examples: int | None = None
    validation_examples: int | None = None
    early_stop_unlimited: bool = False
    patience: int | None = None
    validate_every: int | None = None
    metric: str | None = None
    new_tokens: int | None = None
    num_beams: int | None = None
    epochs: float = 3.0
    steps: int | None = None
    batch_size: int = 1
    accumulation: int = 8
    learning_rate: float = 1e-4
    schedule: str = "linear"
    warmup: float = 0
    weight_decay: float = 0.0
    dropout: float | None = None
    bfloat16: bool = False
    gradient_checkpointing: bool = False
    lora: int | None = None
    lora_layers: tuple[int, ...] | None = None
    freeze_encoder: bool = False
    memories: str | None = None
    evidence: float = 0.0
    evidence_data: str | None = None
    seed: int = 0
    trainer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _FLOATS:
            if isinstance(getattr(self, name), str):  # YAML reads 2e-5 as text
                object.__setattr__(self, name, _parse_float(name, getattr(self, name)))
        check_types(TrainingSettings, vars(self))
        for name in ("layers", "heads", "lora_layers"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_choice("method", self.method, tuple(STRATEGIES))
        _check_choice("schedule", self.schedule, SCHEDULES)
        _check_choice("question", self.question, PLACES)
        if self.metric is not None:
            _check_choice("metric", self.metric, METRICS)
        _check_trainer_fields(self.trainer)
        self._check_ranges()
        self._check_combinations()

    def _check_ranges(self) -> None:
        for name, smallest in (_SMALLEST | _SMALLEST_OPTIONAL).items():
            value = getattr(self, name)
            if value is None and name in _SMALLEST_OPTIONAL:
                continue
            if value is None or value < smallest:
                raise InputError(f"{name} is {value}; expected at least {smallest}")
        for name in ("epochs", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected more than 0")
        if self.warmup < 0 or (self.warmup > 1 and self.warmup != int(self.warmup)):
            raise InputError(f"warmup is {self.warmup}; expected a number of steps, or a share of them below 1")
        if self.evidence < 0:
            raise InputError(f"evidence is {self.evidence}; expected 0 or more")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}; expected 0 or more, and less than 1")

    def _check_combinations(self) -> None:
        if self.distractors and self.method in ("random", "alternating"):
            raise InputError(
                f"distractors is {self.distractors} and the method is {self.method!r}; most of the randomly drawn "
                "tokens would be distractors: leave one of them out"
            )
        if self.method != "memorizing" and (self.layer is not None or self.gated):
            raise InputError(f"layer and gated are for method 'memorizing'; the method is {self.method!r}")
        if self.method == "reread" and self.question != "decoder":
            raise InputError(
                f"the method is 'reread' and question {self.question!r}; expected 'decoder', where a question stands "
                "while it searches passages"
            )
        if self.evidence_data is not None and not self.evidence:
            raise InputError("evidence_data was given without a weight of its loss; give one: evidence")
        if self.freeze_encoder and self.distractors:
            raise InputError("freeze_encoder and distractors were given; expected one of them")
        if self.memories is not None and not self.freeze_encoder:
            raise InputError("memories was given; it is for training with freeze_encoder: give both")
        if self.lora_layers is not None and self.lora is None:
            raise InputError("lora_layers was given without lora; expected the rank of an adapter as well: give lora")
        if self.gated and self.lora is not None:
            raise InputError("gated and lora were given; an adapter does not keep the gate: train all weights")
        QuestionFormat(self.question, self.form, self.summary_prompt)  # checks the wording
        if self.validation is None and (self.patience is not None or self.early_stop_unlimited):
            raise InputError("early stopping was asked for without validation data; give some: --validation")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all settings."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def of(cls, values: dict[str, Any], source: str) -> TrainingSettings:
        """Build settings from names and values, such as those of a recipe; `source` is named in errors."""
        unknown = sorted(set(values) - set(cls.names()))
        if unknown:
            raise InputError(f"{source} has {', '.join(unknown)}; expected only: {', '.join(cls.names())}")
        if missing := [name for name in ("model", "data") if values.get(name) is None]:
            raise InputError(f"{source} has no {' and no '.join(missing)}; expected a value: give it")
        return cls(**values)

    def to_json(self) -> str:
        """Return all settings as the text of the settings file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def equal_json(self, text: bytes) -> bool:
        """Whether a settings file has these settings; those that an earlier version did not have are the defaults."""
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        try:
            return defaults | json.loads(text) == json.loads(self.to_json())
        except (TypeError, *JSON_ERRORS):
            return False


def _parse_float(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError(f"{name} is {value!r}; expected a number") from None


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; expected one of: {', '.join(allowed)}")


def _check_trainer_fields(values: dict[str, Any]) -> None:
    from transformers import Seq2SeqTrainingArguments

    known = {field.name for field in fields(Seq2SeqTrainingArguments) if field.init}
    if unknown := sorted(set(values) - known):
        raise InputError(
            f"trainer has {', '.join(unknown)}; expected fields of transformers.Seq2SeqTrainingArguments, such as "
            "label_smoothing_factor"
        )
