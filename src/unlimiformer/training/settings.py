"""Settings of a training run, from a recipe (YAML) or from arguments; saved next to the trained model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..qa import PLACES, QuestionFormat
from .strategies import STRATEGIES

SETTINGS_FILE = "training.json"
"""Name of the settings file in the folder of a run."""
SCHEDULES = ("linear", "cosine", "constant", "constant_with_warmup")

_FLOATS = ("epochs", "learning_rate", "weight_decay", "overlap", "dropout")
_SMALLEST = {
    "distractors": 0,
    "source_limit": 1,
    "target_limit": 2,
    "new_tokens": 1,
    "batch_size": 1,
    "accumulation": 1,
    "warmup": 0,
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
}


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that decides the result of a training run. Limits are numbers of tokens.

    Parameters
    ----------
    model : name, folder or hub id of the model to start from.
    data, validation : sources of examples, see `tasks.loading`. With validation data the best checkpoint is kept.
    method : name of a strategy, a key of `STRATEGIES`.
    top_k, window, overlap : settings of the wrapper; None for the model's own.
    layer, gated : for the method "memorizing".
    question : "window" puts questions before every window; "decoder" puts them at the start of the decoder's text,
        so that all questions of a document share one memory.
    form : wording of a question, with {question} in it.
    distractors : number of tokens of earlier documents whose states are shown next to each document.
    source_limit, target_limit : longest document and answer in training.
    examples, validation_examples : use at most this number of examples.
    early_stop_unlimited : validate on whole documents even if the method truncates them in training.
    patience : stop after this number of validations without a better result.
    validate_every : optimizer steps between validations; None validates after each epoch.
    new_tokens : longest generated answer in validation.
    steps : optimizer steps; replaces `epochs`.
    accumulation : batches for one optimizer step.
    dropout : replaces the model's own rate.
    lora : rank of an adapter to train instead of all weights.
    """

    model: str
    data: str
    validation: str | None = None
    method: str = "standard"
    top_k: int | None = None
    window: int | None = None
    overlap: float | None = None
    layer: int | None = None
    gated: bool = False
    question: str = "window"
    form: str = "{question}\n"
    distractors: int = 0
    source_limit: int = 16384
    target_limit: int = 1024
    examples: int | None = None
    validation_examples: int | None = None
    early_stop_unlimited: bool = False
    patience: int | None = None
    validate_every: int | None = None
    new_tokens: int = 128
    epochs: float = 3.0
    steps: int | None = None
    batch_size: int = 1
    accumulation: int = 8
    learning_rate: float = 1e-4
    schedule: str = "linear"
    warmup: int = 0
    weight_decay: float = 0.0
    dropout: float | None = None
    bfloat16: bool = False
    gradient_checkpointing: bool = False
    lora: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_choice("method", self.method, tuple(STRATEGIES))
        _check_choice("schedule", self.schedule, SCHEDULES)
        _check_choice("question", self.question, PLACES)
        for name in _FLOATS:
            if isinstance(getattr(self, name), str):  # YAML reads 2e-5 as text
                object.__setattr__(self, name, _parse_float(name, getattr(self, name)))
        self._check_ranges()
        self._check_combinations()

    def _check_ranges(self) -> None:
        for name, smallest in (_SMALLEST | _SMALLEST_OPTIONAL).items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InputError(f"{name} is {value!r}; expected a whole number")
            if value is None and name in _SMALLEST_OPTIONAL:
                continue
            if value is None or value < smallest:
                raise InputError(f"{name} is {value}; expected at least {smallest}")
        for name in ("epochs", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected more than 0")
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
        if self.gated and self.lora is not None:
            raise InputError("gated and lora were given; an adapter does not keep the gate: train all weights")
        QuestionFormat(self.question, self.form)  # checks the wording
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


def recipes() -> dict[str, dict[str, Any]]:
    """Load the package's recipes by name: the settings for the rows of the paper's tables."""
    folder = Path(str(resources.files("unlimiformer.training") / "recipes"))
    return {name: values for path in sorted(folder.glob("*.yaml")) for name, values in _load_rows(path).items()}


def read_recipe(name: str) -> dict[str, Any]:
    """Load a recipe's settings: NAME of the package, FILE.yaml, or FILE.yaml/ROW for one row of a file."""
    stem, suffix, row = name.partition(".yaml")
    if not suffix:
        available, key = recipes(), name
    else:
        available = _load_rows(Path(stem + suffix))
        key = Path(stem).name + row if row else next(iter(available)) if len(available) == 1 else name
    if key not in available:
        raise InputError(f"no recipe {name!r}; expected a YAML file, FILE.yaml/ROW, or one of: {', '.join(available)}")
    return available[key]


def _load_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Load the recipes of a file by name. Settings outside `rows` apply to every row."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no recipe {str(path)!r}; expected a YAML file, or a name from the package") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"recipe {path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"recipe {path} has no names and values; expected lines such as `method: sled`")
    rows = content.pop("rows", None)
    if rows is None:
        return {path.stem: content}
    return {f"{path.stem}/{row}": {**content, **changes} for row, changes in rows.items()}


def _parse_float(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError(f"{name} is {value!r}; expected a number") from None


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; expected one of: {', '.join(allowed)}")
