"""The settings of one evaluation: a frozen, validated dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ..config import UnlimiformerConfig
from ..errors import InputError
from ..qa import QuestionFormat
from ..utils.value_types import check_types
from .methods import METHODS

_AT_LEAST_ONE = ("examples", "input_limit", "batch_size")
_FIXED_BY_METHOD = {"sled": ("top_k", "focus"), "memorizing": ("layers", "focus")}


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of one evaluation.

    Parameters
    ----------
    model : registry name, folder or hub id.
    task : name of a task, or a YAML file.
    method : one of METHODS.
    data : JSONL file; None uses the task's own data.
    examples : number of examples, taken evenly from all; None for all.
    input_limit : tokens of a document that any method may see; None for all.
    config : settings of the wrapper, by name.
    layer : layer that retrieves with the method "memorizing"; None for the default.
    place, form, summary_prompt : where and how questions are asked; None as the model was trained.
    generation : arguments of the model's `generate`. All others are the model's own, except that nothing is sampled
        without `do_sample`, and that `max_new_tokens` is what the task says, or follows the question.
    seeds : of sampling; every seed draws its own answers.
    batch_size : items answered in one call.
    metrics : names of metrics; None as the task says.
    entity_model : spaCy pipeline of the metric "entities"; None for the registry's.
    bertscore_model, bertscore_layer : encoder of the metric "bertscore"; None for the paper's.
    strict : malformed lines of `data` are errors instead of being skipped.
    """

    model: str
    task: str = "jsonl"
    method: str = "unlimiformer"
    data: str | None = None
    split: str = "validation"
    examples: int | None = None
    input_limit: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    layer: int | None = None
    place: str | None = None
    form: str | None = None
    summary_prompt: str | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    batch_size: int = 1
    metrics: tuple[str, ...] | None = None
    entity_model: str | None = None
    bertscore_model: str | None = None
    bertscore_layer: int | None = None
    strict: bool = False
    device: str | None = None

    def __post_init__(self) -> None:
        if self.data is not None:
            object.__setattr__(self, "data", str(self.data))
        check_types(EvaluationSettings, vars(self))
        if self.method not in METHODS:
            raise InputError(f"method is {self.method!r}; expected one of: {', '.join(METHODS)}")
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; expected at least 1")
        for name in ("max_new_tokens", "num_beams"):
            if self.generation.get(name, 1) < 1:
                raise InputError(f"{name} is {self.generation[name]}; expected at least 1")
        self._check_seeds()
        for name in _FIXED_BY_METHOD.get(self.method, ()):
            if name in self.config:
                raise InputError(f"{name} was given with method {self.method!r}, which decides it: leave it out")
        if unknown := sorted(set(self.config) - set(UnlimiformerConfig.names())):
            raise InputError(f"config has {', '.join(unknown)}; expected: {', '.join(UnlimiformerConfig.names())}")
        UnlimiformerConfig(**self.config)
        wording = {"place": self.place, "form": self.form, "summary_prompt": self.summary_prompt}
        QuestionFormat(**{name: value for name, value in wording.items() if value is not None})

    @classmethod
    def of(cls, values: dict[str, Any], source: str) -> EvaluationSettings:
        """Build settings from names and values, such as those of a recipe; `source` is named in errors."""
        names = [known.name for known in fields(cls)]
        if unknown := sorted(set(values) - set(names)):
            raise InputError(f"{source} has {', '.join(unknown)}; expected only: {', '.join(names)}")
        return cls(**values)

    def _check_seeds(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds are {list(self.seeds)}; expected one or more different numbers")
        if len(self.seeds) > 1 and not self.generation.get("do_sample"):
            raise InputError(
                f"seeds are {list(self.seeds)} without sampling, where all give the same answers; give one seed, or a "
                "temperature"
            )

    def generate_arguments(self, task_tokens: int | None) -> dict[str, Any]:
        """Return the arguments for the model's `generate`; `task_tokens` is the task's longest answer."""
        longest = {} if task_tokens is None else {"max_new_tokens": task_tokens}
        return {**longest, "do_sample": False, **self.generation}
