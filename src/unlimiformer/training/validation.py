"""How a training run is validated: which answers are generated, and the metric that chooses the best checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..evaluation.metrics import METRICS, Metric
from ..evaluation.metrics.rouge import geometric_mean
from ..tasks import Example, Task, merge_answers, tasks
from .seq2seq_trainer import decode_ids
from .settings import METRICS as VALIDATION_METRICS
from .settings import TrainingSettings

_DEFAULT_METRIC, _DEFAULT_NEW_TOKENS = "f1", 128


def validation_metric(settings: TrainingSettings) -> str:
    """The metric that chooses the best checkpoint: as set, as the task of the validation data says, or F1."""
    task = _validation_task(settings)
    of_task = () if task is None else tuple(name for name in task.metrics if name in VALIDATION_METRICS)
    return settings.metric or next(iter(of_task), _DEFAULT_METRIC)


@dataclass(frozen=True)
class Validation:
    """What is asked in validation, and how answers are scored.

    Parameters
    ----------
    examples : one for each question.
    references : all correct answers to each of them.
    generation : arguments of `generate`; for all others the model's own generation config holds.
    """

    examples: list[Example]
    references: list[tuple[str, ...]]
    metric: Metric
    generation: dict[str, Any]

    @classmethod
    def of(cls, settings: TrainingSettings, examples: Sequence[Example]) -> Validation:
        """The validation that settings ask for, on some examples; a missing package is reported at once."""
        merged = merge_answers(examples)
        task = _validation_task(settings)
        longest = settings.new_tokens or (None if task is None else task.new_tokens) or _DEFAULT_NEW_TOKENS
        generation: dict[str, Any] = {"max_new_tokens": longest, "do_sample": False}
        if settings.num_beams is not None:
            generation["num_beams"] = settings.num_beams
        metric = METRICS[validation_metric(settings)]()
        return cls([example for example, _ in merged], [answers for _, answers in merged], metric, generation)

    def score(self, tokenizer: Any, predictions: Any) -> dict[str, float]:
        """Means of the metric over all answers; "rouge" is the geometric mean of its three kinds."""
        answers = decode_ids(predictions.predictions, tokenizer)
        columns = self.metric.scores(answers, self.references)
        means = {name: sum(scores) / len(scores) for name, scores in columns.items()}
        return {**means, "rouge": geometric_mean(means)} if self.metric.name == "rouge" else means


def _validation_task(settings: TrainingSettings) -> Task | None:
    """The task that validation data are of; None for a file."""
    return tasks().get((settings.validation or "").partition(":")[0])
