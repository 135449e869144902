"""What one evaluation is to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..config import UnlimiformerConfig
from ..errors import UnlimiformerError
from ..qa import PLACES
from .methods import METHODS


@dataclass(frozen=True)
class EvaluationSettings:
    """One evaluation. `config` has the wrapper's settings; limits are in tokens. What is None is as the task or the
    model has it: `metrics`, `new_tokens`; `place` and `form`, where and how questions are asked.

    `input_limit`: no method sees more of a document. `batch_size`: items that are answered in one call.
    `temperature`: 0 takes the likeliest token; with more, each of `seeds` gives answers of its own.
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
        for name, known in (("method", METHODS), ("place", PLACES)):
            value = getattr(self, name)
            if value not in known and not (value is None and name == "place"):
                raise UnlimiformerError(f"{name} is {value!r}; expected one of: {', '.join(known)}")
        for name in ("examples", "input_limit", "new_tokens", "beams", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UnlimiformerError(f"{name} is {value}; expected at least 1")
        if self.temperature < 0 or self.no_repeat_ngram < 0:
            raise UnlimiformerError("temperature and no_repeat_ngram must be at least 0")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise UnlimiformerError(f"seeds are {list(self.seeds)}; expected one or more different numbers")
        if len(self.seeds) > 1 and self.temperature == 0:
            raise UnlimiformerError(
                f"seeds are {list(self.seeds)} with temperature 0, where all give the same answers: give one, or a "
                "temperature"
            )
        for method, name in (("sled", "top_k"), ("sled", "focus"), ("memorizing", "layers"), ("memorizing", "focus")):
            if self.method == method and name in self.config:
                raise UnlimiformerError(f"{name} was given with method {method!r}, which decides it: leave it out")
        UnlimiformerConfig(**self.config)

    def generation(self, new_tokens: int) -> dict[str, Any]:
        """For the model's `generate`."""
        told: dict[str, Any] = {"max_new_tokens": self.new_tokens or new_tokens, "num_beams": self.beams}
        told |= {"do_sample": self.temperature > 0, "no_repeat_ngram_size": self.no_repeat_ngram}
        return told | ({"temperature": self.temperature} if self.temperature else {})
