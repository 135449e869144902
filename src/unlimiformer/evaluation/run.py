"""Evaluate a model on a task: answer all items, store each answer as soon as it is generated, and score.

A run that was stopped continues in the same batches with the same random seeds, and ends with the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..config import UnlimiformerConfig
from ..engines.causal.answer_adapter import answers_digest
from ..errors import InputError
from ..hub.loading import load_on
from ..memory.encode import Progress
from ..qa import QuestionFormat
from ..tasks import Example, Task, merge_answers
from ..tasks import task as get_task
from ..text.tokenization import truncate_text
from ..utils.files import atomic_write, friendly_os_errors
from ..utils.resumable_run import ResumableRun
from ..utils.system import peak_memory
from .bootstrap import Columns, intervals, means
from .evidence import evidence_recall
from .methods import Answerer, Item
from .metrics import METRICS, BertScore, EntityRecall, Metric
from .result import FILE as RESULT
from .result import Result
from .settings import EvaluationSettings

SETTINGS, PREDICTIONS = "settings.json", "predictions.jsonl"
SUBMISSION = "submission.json"
"""Answers by the ids of their items, as leaderboards take them; written for a dataset that has ids."""
_LEFT_BY_FAILED_START = {f"{PREDICTIONS}.lock", f"{SETTINGS}.part"}
_PACKAGES = ("torch", "transformers", "rouge-score", "bert-score", "spacy")
_NOT_IN_IDENTITY = ("device", "strict", "metrics", "entity_model", "bertscore_model", "bertscore_layer", "generation")
"""Settings that do not change the answers: a run may continue with other values. Those of `generation` are added."""

Predictions = dict[tuple[str, int], dict[str, Any]]
"""Rows of the predictions, by the item's key and the seed."""


def evaluate(
    settings: EvaluationSettings,
    folder: str | Path,
    log: Callable[[str], None] = lambda line: None,
    progress: Progress = lambda done, of: None,
) -> Result:
    """Answer the items that have no answer in the folder yet, and score all answers.

    The same settings continue a run in its folder; other settings are refused there.
    """
    folder = Path(folder)
    evaluation = Evaluation.prepare(settings, log)
    _check_folder(folder)
    rows, identity = folder / PREDICTIONS, evaluation.identity()
    with ResumableRun.open(rows=rows, settings=folder / SETTINGS, identity=identity) as run:
        predictions = _load_predictions(run)
        keys = {(item.key, seed) for item in evaluation.items for seed in settings.seeds}
        if missing := keys - predictions.keys():
            log(f"{len(keys) - len(missing):,} of {len(keys):,} answers exist already")
            evaluation.answer(run, predictions, progress)
        result = evaluation.score(predictions, run.settings["made_by"])
        with friendly_os_errors(folder / RESULT, resumable=True):
            if all(item.id is not None for item in evaluation.items):
                atomic_write(folder / SUBMISSION, evaluation.submission(predictions))
            atomic_write(folder / RESULT, result.to_json())
    return result


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: what is asked and how it is scored.

    Parameters
    ----------
    items : longest document first, so that one that does not fit in memory is noticed at once.
    left_out : malformed lines of the data, described.
    """

    settings: EvaluationSettings
    task: Task
    metrics: list[Metric]
    items: list[Item]
    left_out: list[str]

    @classmethod
    def prepare(cls, settings: EvaluationSettings, log: Callable[[str], None]) -> Evaluation:
        """Load the task, its metrics and its data; what is missing is reported before any work."""
        task = get_task(settings.task)
        metrics = _create_metrics(settings, task)
        left_out: list[str] = []

        def report(line: str) -> None:
            left_out.append(line)
            log(f"left out: {line}")

        examples = task.load(settings.data, settings.split, settings.examples, None if settings.strict else report)
        if not examples:
            raise InputError(f"{settings.data or settings.task} has no examples; expected at least one")
        items = _group_examples(examples)
        if len({bool(item.references) for item in items}) > 1:
            raise InputError(
                f"{settings.data or settings.task} has answers to some questions only; expected answers to all, or to "
                "none for a test split"
            )
        return cls(settings, task, metrics, items, left_out)

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the answers, by name."""
        fields = {name: value for name, value in asdict(self.settings).items() if name not in _NOT_IN_IDENTITY}
        return fields | {
            **self.settings.generate_arguments(self.task.new_tokens),
            "task_version": self.task.version,
            "items": hashlib.sha256("".join(item.key for item in self.items).encode()).hexdigest()[:16],
        }

    def answer(self, run: ResumableRun, predictions: Predictions, progress: Progress) -> None:
        """Answer what is missing in `predictions`, and append it there and to the run.

        The batches are those of a run that was never stopped: one with a missing answer is answered as a whole.
        """
        answering = self._load_model(run)
        versions = {
            "python": platform.python_version(),
            "unlimiformer": __version__,
            **dict(_installed_versions()),
        }
        run.note("made_by", {"versions": versions, "peak_bytes": peak_memory()})
        size = self.settings.batch_size if answering.batched else 1
        batches = [(seed, batch) for seed in self.settings.seeds for batch in _split(self.items, size)]
        done, total = 0, len(self.items) * len(self.settings.seeds)
        progress(done, total)
        with answering.wrapped:
            for number, (seed, batch) in enumerate(batches):
                if any((item.key, seed) not in predictions for item in batch):
                    torch.manual_seed(1_000_003 * seed + number)
                    for row in self._answer_batch(answering, batch, seed):
                        if (row["key"], seed) not in predictions:
                            run.append(row)
                            predictions[row["key"], seed] = row
                done += len(batch)
                progress(done, total)
        run.note("made_by", {"versions": versions, "peak_bytes": peak_memory()})

    def score(self, predictions: Predictions, made_by: dict[str, Any]) -> Result:
        """Compute all metrics; `made_by` has the versions and the peak memory of the process that answered."""
        settings = self.settings
        columns_by_seed = {seed: self._score_seed(predictions, seed) for seed in settings.seeds}
        columns = {
            name: np.mean([columns[name] for columns in columns_by_seed.values()], axis=0)
            for name in columns_by_seed[settings.seeds[0]]
        }
        numbers = {text: number for number, text in enumerate(dict.fromkeys(item.document for item in self.items))}
        documents = [numbers[item.document] for item in self.items]
        return Result(
            task=self.task.name,
            task_version=self.task.version,
            metrics=intervals(columns, documents),
            scores={name: [float(score) for score in scores] for name, scores in columns.items()},
            keys=[item.key for item in self.items],
            documents=documents,
            settings=json.loads(json.dumps(asdict(settings))),
            by_seed={str(seed): means(columns) for seed, columns in columns_by_seed.items()},
            left_out=self.left_out,
            seconds=sum(predictions[item.key, seed]["seconds"] for item in self.items for seed in settings.seeds),
            peak_bytes=made_by["peak_bytes"],
            versions=made_by["versions"],
        )

    def submission(self, predictions: Predictions) -> str:
        """The answers of the first seed as a JSON object, by the ids of the items."""
        seed = self.settings.seeds[0]
        return json.dumps({item.id: predictions[item.key, seed]["answer"] for item in self.items}, indent=1) + "\n"

    def _load_model(self, run: ResumableRun) -> Answerer:
        settings = self.settings
        model, tokenizer = load_on(settings.model, settings.device)
        run.pin_model(answers_digest(model))
        return Answerer.wrap(
            model,
            tokenizer,
            UnlimiformerConfig(**settings.config),
            _question_format(settings, model),
            settings.generate_arguments(self.task.new_tokens),
            settings.method,
            settings.layer,
        )

    def _answer_batch(self, answering: Answerer, batch: Sequence[Item], seed: int) -> list[dict[str, Any]]:
        started = time.perf_counter()
        tokenizer, limit = answering.wrapped.tokenizer, self.settings.input_limit
        if limit is not None:
            batch = [replace(item, document=truncate_text(item.document, tokenizer, limit)) for item in batch]
        replies = answering.answers(batch)
        seconds = (time.perf_counter() - started) / len(batch)
        return [
            {
                "key": item.key,
                "seed": seed,
                "question": item.question,
                "answer": reply.text,
                "references": item.references,
                "seconds": seconds,
                "evidence": evidence_recall(item.evidence, reply.seen),
                **({} if reply.sentences is None else {"sentences": reply.sentences}),
            }
            for item, reply in zip(batch, replies, strict=True)
        ]

    def _score_seed(self, predictions: Predictions, seed: int) -> Columns:
        """Score the answers that were drawn with one seed; every column has one score per item.

        There are no scores if the correct answers are not known.
        """
        if not self.items[0].references:
            return {}
        answers = [predictions[item.key, seed]["answer"] for item in self.items]
        references = [item.references for item in self.items]
        parts = [metric.scores(answers, references) for metric in self.metrics]
        columns = {name: np.array(scores) for part in parts for name, scores in part.items()}
        evidence = [predictions[item.key, seed].get("evidence") for item in self.items]
        if any(recall is not None for recall in evidence):
            columns["evidence"] = np.array([np.nan if recall is None else recall for recall in evidence])
        return columns


def _create_metrics(settings: EvaluationSettings, task: Task) -> list[Metric]:
    configured: dict[str, Callable[[], Metric]] = {
        "entities": lambda: EntityRecall(settings.entity_model),
        "bertscore": lambda: BertScore(settings.bertscore_model, settings.bertscore_layer),
    }
    names = settings.metrics or task.metrics
    if unknown := sorted(set(names) - set(METRICS)):
        raise InputError(f"no metric {', '.join(unknown)}; expected some of: {', '.join(METRICS)}")
    return [configured[name]() if name in configured else METRICS[name]() for name in names]


def _group_examples(examples: Sequence[Example]) -> list[Item]:
    """Build the items, longest document first."""
    items, repeats = [], Counter[str]()
    for example, answers in merge_answers(examples):
        digest = hashlib.sha256(json.dumps([example.document, example.question]).encode()).hexdigest()[:16]
        repeats[digest] += 1
        key = digest if repeats[digest] == 1 else f"{digest}-{repeats[digest]}"
        items.append(Item(key, example.document, example.question, answers, example.evidence, example.id))
    order = {document: place for place, document in enumerate(dict.fromkeys(item.document for item in items))}
    return sorted(items, key=lambda item: (-len(item.document), order[item.document]))


def _check_folder(folder: Path) -> None:
    """Refuse a folder that has files but no run, before anything is written there."""
    if not folder.exists() or (folder / SETTINGS).exists():
        return
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - _LEFT_BY_FAILED_START:
        raise InputError(f"{folder} has other files and no run; expected a new or an empty folder")


def _load_predictions(run: ResumableRun) -> Predictions:
    predictions = {}
    for row in run.rows():
        if not {"key", "seed", "answer", "seconds"} <= row.keys():
            raise InputError(f"{run.path} has a row that is not an answer: {row}; remove it")
        predictions[row["key"], row["seed"]] = row
    return predictions


def _question_format(settings: EvaluationSettings, model: Any) -> QuestionFormat:
    given = {name: getattr(settings, name) for name in ("place", "form", "summary_prompt")}
    changes = {name: value for name, value in given.items() if value is not None}
    if unusable := [name for name in ("place", "form") if name in changes and not model.config.is_encoder_decoder]:
        raise InputError(
            f"{' and '.join(unusable)} was given; a decoder-only model gets the question after the text: leave it out"
        )
    return replace(QuestionFormat.for_model(settings.model), **changes)


def _split(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _installed_versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
