"""The settings of one evaluation: a frozen, validated dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..config import UnlimiformerConfig
from ..errors import InputError
from ..qa import PLACES
from .methods import METHODS

_AT_LEAST_ONE = ("examples", "input_limit", "new_tokens", "beams", "batch_size")
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
    place, form : where and how questions are asked; None as the model was trained.
    new_tokens : longest answer in tokens; None as the task says, or as the question asks.
    temperature : 0 always takes the most likely token; above 0 tokens are sampled, anew for each of `seeds`.
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
    new_tokens: int | None = None
    beams: int = 1
    no_repeat_ngram: int = 0
    temperature: float = 0.0
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
        if self.method not in METHODS:
            raise InputError(f"method is {self.method!r}; expected one of: {', '.join(METHODS)}")
        if self.place is not None and self.place not in PLACES:
            raise InputError(f"place is {self.place!r}; expected one of: {', '.join(PLACES)}")
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; expected at least 1")
        if self.temperature < 0 or self.no_repeat_ngram < 0:
            raise InputError("temperature and no_repeat_ngram must be at least 0")
        self._check_seeds()
        for name in _FIXED_BY_METHOD.get(self.method, ()):
            if name in self.config:
                raise InputError(f"{name} was given with method {self.method!r}, which decides it: leave it out")
        UnlimiformerConfig(**self.config)

    def _check_seeds(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds are {list(self.seeds)}; expected one or more different numbers")
        if len(self.seeds) > 1 and self.temperature == 0:
            raise InputError(
                f"seeds are {list(self.seeds)} with temperature 0, where all give the same answers; give one seed, or "
                "a temperature"
            )

    def generation(self, new_tokens: int | None) -> dict[str, Any]:
        """Return the arguments for the model's `generate`; `new_tokens` is the task's limit."""
        longest = self.new_tokens or new_tokens
        arguments: dict[str, Any] = {} if longest is None else {"max_new_tokens": longest}
        arguments["num_beams"] = self.beams
        arguments |= {"do_sample": self.temperature > 0, "no_repeat_ngram_size": self.no_repeat_ngram}
        return arguments | ({"temperature": self.temperature} if self.temperature else {})
