"""All that decides a training, from a recipe (YAML) or from arguments; kept beside what was trained."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import UnlimiformerError
from ..qa import PLACES, QuestionFormat
from .strategies import STRATEGIES

SETTINGS = "training.json"
"""The file, beside what was trained, that has its settings."""
SCHEDULES = ("linear", "cosine", "constant", "constant_with_warmup")


@dataclass(frozen=True)
class TrainingSettings:
    """One training. Limits are in tokens; `validate_every` is in optimizer steps (None: after each epoch).

    `question`: "window" puts it before every window, "decoder" at the start of the decoder's text, so that one memory
    serves every question. `distractors`: how many tokens of earlier documents stand beside each.
    `early_stop_unlimited`: validate with all of each document, also where training truncates.
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
        _one_of("method", self.method, tuple(STRATEGIES))
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("question", self.question, PLACES)
        for name in ("epochs", "learning_rate", "weight_decay", "overlap", "dropout"):
            if isinstance(getattr(self, name), str):  # YAML has 2e-5 as text
                object.__setattr__(self, name, _number(name, getattr(self, name)))
        least = {
            "distractors": 0,
            "source_limit": 1,
            "target_limit": 2,
            "new_tokens": 1,
            "batch_size": 1,
            "accumulation": 1,
            "warmup": 0,
        }
        optional = {"top_k": 1, "window": 2, "examples": 1, "validation_examples": 1, "patience": 1, "steps": 1}
        optional |= {"validate_every": 1, "lora": 1}
        for name, lowest in (least | optional).items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise UnlimiformerError(f"{name} is {value!r}; expected a whole number")
            if (value is None and name not in optional) or (value is not None and value < lowest):
                raise UnlimiformerError(f"{name} is {value}; expected at least {lowest}")
        for name in ("epochs", "learning_rate"):
            if not getattr(self, name) > 0:
                raise UnlimiformerError(f"{name} is {getattr(self, name)}; expected more than 0")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UnlimiformerError(f"dropout is {self.dropout}; expected 0 or more, and less than 1")
        if self.distractors and self.method in ("random", "alternating"):
            raise UnlimiformerError(
                f"distractors is {self.distractors} and the method {self.method!r}, which would draw little else: "
                "leave one of them out"
            )
        if self.method != "memorizing" and (self.layer is not None or self.gated):
            raise UnlimiformerError(f"layer and gated are for method 'memorizing'; the method is {self.method!r}")
        if self.gated and self.lora is not None:
            raise UnlimiformerError("gated and lora were given; an adapter does not keep the gate: train all weights")
        QuestionFormat(self.question, self.form)
        if self.validation is None and (self.patience is not None or self.early_stop_unlimited):
            raise UnlimiformerError("early stopping was asked for without validation data; give some: --validation")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Of all settings."""
        return tuple(each.name for each in fields(cls))

    @classmethod
    def of(cls, told: dict[str, Any], where: str) -> TrainingSettings:
        """From names and values, such as those of a recipe."""
        unknown = sorted(set(told) - set(cls.names()))
        if unknown:
            raise UnlimiformerError(f"{where} has {', '.join(unknown)}; expected only: {', '.join(cls.names())}")
        if missing := [name for name in ("model", "data") if told.get(name) is None]:
            raise UnlimiformerError(f"{where} does not say: {', '.join(missing)}; give it")
        return cls(**told)

    def to_json(self) -> str:
        """All settings."""
        return json.dumps(asdict(self), indent=1) + "\n"


def recipes() -> dict[str, dict[str, Any]]:
    """The package's recipes by name: what every row of the paper's tables was trained with."""
    folder = Path(str(resources.files("unlimiformer.training") / "recipes"))
    return {name: told for path in sorted(folder.glob("*.yaml")) for name, told in _rows(path).items()}


def read_recipe(name: str) -> dict[str, Any]:
    """A recipe's settings, by its name, or from a YAML file; FILE.yaml/ROW is one of its rows."""
    file, found, row = name.partition(".yaml")
    if not found:
        known, wanted = recipes(), name
    else:
        known = _rows(Path(file + found))
        wanted = Path(file).name + row if row else next(iter(known)) if len(known) == 1 else name
    if wanted not in known:
        raise UnlimiformerError(
            f"no recipe {name!r}; expected a YAML file, FILE.yaml/ROW, or one of: {', '.join(known)}"
        )
    return known[wanted]


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    """The recipes in a file: settings that all rows share, and `rows`, by name, with what each has of its own."""
    import yaml

    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnlimiformerError(f"no recipe {str(path)!r}; expected a YAML file, or a name from the package") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UnlimiformerError(f"recipe {path} cannot be read: {error}") from None
    if not isinstance(told, dict):
        raise UnlimiformerError(f"recipe {path} has no names and values; expected lines such as `method: sled`")
    rows = told.pop("rows", None)
    return {path.stem: told} if rows is None else {f"{path.stem}/{row}": {**told, **own} for row, own in rows.items()}


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UnlimiformerError(f"{name} is {value!r}; expected a number") from None


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UnlimiformerError(f"{name} is {value!r}; expected one of: {', '.join(allowed)}")
