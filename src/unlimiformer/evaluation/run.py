"""One evaluation: answers are written as they come, and a run that was stopped goes on with the same numbers."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config import UnlimiformerConfig
from ..errors import UnlimiformerError
from ..hub.loading import load_on
from ..memory.encode import Progress
from ..memory.fingerprint import model_digest
from ..qa import QuestionFormat
from ..tasks import Example, Task, task
from ..text.tokenization import truncate_text
from ..utils.files import atomic_write
from ..utils.jsonl import append_row, read_rows, settings_diff
from ..utils.system import peak_memory
from .bootstrap import Columns, intervals, means
from .methods import Answering, Item
from .metrics import METRICS, BertScore, EntityRecall, Metric
from .result import FILE as RESULT
from .result import Result
from .settings import EvaluationSettings

SETTINGS, PREDICTIONS = "settings.json", "predictions.jsonl"
_PACKAGES = ("unlimiformer", "torch", "transformers", "rouge-score", "bert-score", "spacy")
_MAY_CHANGE = ("device", "strict", "metrics", "entity_model", "bertscore_model", "bertscore_layer")
"""Settings that decide no answer: a run may go on with others."""


def evaluate(
    settings: EvaluationSettings,
    folder: str | Path,
    log: Callable[[str], None] = lambda line: None,
    progress: Progress = lambda done, of: None,
) -> Result:
    """Answers what is not answered yet, and measures. The same settings go on in a folder; others are refused there."""
    folder = Path(folder)
    chosen = task(settings.task)
    measures = _measures(settings, chosen)
    left_out: list[str] = []

    def report(line: str) -> None:
        left_out.append(line)
        log(f"left out: {line}")

    found = chosen.load(settings.data, settings.split, settings.examples, None if settings.strict else report)
    items = _items(found)
    if not items:
        raise UnlimiformerError(f"{settings.data or settings.task} has no examples; expected at least one")
    identity = _identity(settings, chosen, items)
    kept = _kept(folder, identity)
    told = _predictions(folder)
    wanted = {(item.key, seed) for item in items for seed in settings.seeds}
    if wanted - set(told):
        log(f"{len(wanted & set(told)):,} of {len(wanted):,} answers are there")
        made_by = _answer(settings, chosen, items, folder, told, progress, identity, kept)
    else:
        made_by = kept["made_by"]
    result = _measure(settings, chosen, measures, items, told, left_out, made_by)
    atomic_write(folder / RESULT, result.to_json())
    return result


def _measures(settings: EvaluationSettings, chosen: Task) -> list[Metric]:
    """Made before any work: what is missing is said at once."""
    special: dict[str, Callable[[], Metric]] = {
        "entities": lambda: EntityRecall(settings.entity_model),
        "bertscore": lambda: BertScore(settings.bertscore_model, settings.bertscore_layer),
    }
    names = settings.metrics or chosen.metrics
    if unknown := sorted(set(names) - set(METRICS)):
        raise UnlimiformerError(f"no metric {', '.join(unknown)}; expected some of: {', '.join(METRICS)}")
    return [special[name]() if name in special else METRICS[name]() for name in names]


def _items(found: Sequence[Example]) -> list[Item]:
    """Longest first, so that what does not fit is known at once; examples of one id are one item."""
    references: dict[tuple, list[str]] = {}
    for number, example in enumerate(found):
        same = number if example.id is None else example.id
        references.setdefault((same, example.document, example.question), []).append(example.answer)
    items, met = [], Counter[str]()
    for (_, document, question), answers in references.items():
        digest = hashlib.sha256(json.dumps([document, question]).encode()).hexdigest()[:16]
        met[digest] += 1
        key = digest if met[digest] == 1 else f"{digest}-{met[digest]}"
        items.append(Item(key, document, question, tuple(answers)))
    places = {document: place for place, document in enumerate(dict.fromkeys(item.document for item in items))}
    return sorted(items, key=lambda item: (-len(item.document), places[item.document]))


def _identity(settings: EvaluationSettings, chosen: Task, items: Sequence[Item]) -> dict[str, Any]:
    """What decides the answers of a run."""
    digest = hashlib.sha256("".join(item.key for item in items).encode()).hexdigest()[:16]
    told = {name: value for name, value in asdict(settings).items() if name not in _MAY_CHANGE}
    told |= {"new_tokens": settings.new_tokens or chosen.new_tokens, "task_version": chosen.version, "items": digest}
    return json.loads(json.dumps(told))


def _kept(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """What was noted in a folder in which the same was begun; nothing of a new one."""
    path = folder / SETTINGS
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UnlimiformerError(f"{folder} has other files and no run; expected a new or an empty folder")
        return {}
    try:
        kept = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise UnlimiformerError(f"{path} cannot be read; expected a new folder, or one with a run") from None
    _refuse_others(folder, kept, identity)
    return kept


def _refuse_others(folder: Path, kept: dict[str, Any], wanted: dict[str, Any]) -> None:
    if values := settings_diff(kept, wanted):
        raise UnlimiformerError(f"{folder} has a run with {values}; give these, or another folder")


def _predictions(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What was answered, by key and seed."""
    told = {}
    for row in read_rows(folder / PREDICTIONS):
        if not {"key", "seed", "answer", "seconds"} <= row.keys():
            raise UnlimiformerError(f"{folder / PREDICTIONS} has a row that is no answer: {row}; remove it")
        told[row["key"], row["seed"]] = row
    return told


def _answer(
    settings: EvaluationSettings,
    chosen: Task,
    items: Sequence[Item],
    folder: Path,
    told: dict[tuple[str, int], dict[str, Any]],
    progress: Progress,
    identity: dict[str, Any],
    kept: dict[str, Any],
) -> dict[str, Any]:
    """Answers batch by batch, in the batches of a run that was never stopped; what they were made by."""
    model, tokenizer = load_on(settings.model, settings.device)
    identity = {**identity, "model_digest": model_digest(model.config, model)}
    if kept:
        _refuse_others(folder, kept, identity)
    asking = _asking(settings, model)
    config = UnlimiformerConfig(**settings.config)
    generation = settings.generation(chosen.new_tokens)
    answering = Answering(model, tokenizer, config, asking, generation, settings.method, settings.layer)
    size = settings.batch_size if answering.together else 1
    batches = [(seed, batch) for seed in settings.seeds for batch in _batches(items, size)]
    done = 0
    made_by: dict[str, Any] = {"versions": {"python": platform.python_version(), **dict(_versions())}}
    _note(folder, {**identity, "made_by": {**made_by, "peak_bytes": peak_memory()}})
    progress(0, len(items) * len(settings.seeds))
    with answering.wrapped, (folder / PREDICTIONS).open("a", encoding="utf-8") as file:
        for number, (seed, batch) in enumerate(batches):
            if any((item.key, seed) not in told for item in batch):
                torch.manual_seed(1_000_003 * seed + number)
                started = time.perf_counter()
                cut = [_cut(item, tokenizer, settings.input_limit) for item in batch]
                answers = answering.answers(cut)
                seconds = (time.perf_counter() - started) / len(batch)
                for item, answer in zip(batch, answers, strict=True):
                    row = {"key": item.key, "seed": seed, "question": item.question, "answer": answer}
                    row |= {"references": item.references, "seconds": seconds}
                    if (item.key, seed) not in told:
                        append_row(file, row)
                        told[item.key, seed] = row
            done += len(batch)
            progress(done, len(items) * len(settings.seeds))
    made_by["peak_bytes"] = peak_memory()
    _note(folder, {**identity, "made_by": made_by})
    return made_by


def _note(folder: Path, told: dict[str, Any]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / SETTINGS, json.dumps(told, indent=1) + "\n")
    except OSError as error:
        raise UnlimiformerError(f"cannot write to {folder}: {error.strerror}") from None


def _asking(settings: EvaluationSettings, model: Any) -> QuestionFormat:
    changes = {name: value for name, value in (("place", settings.place), ("form", settings.form)) if value is not None}
    if changes and not model.config.is_encoder_decoder:
        raise UnlimiformerError(
            f"{' and '.join(changes)} was given; a decoder-only model is asked behind the text: leave it out"
        )
    return replace(QuestionFormat.for_model(settings.model), **changes)


def _batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _cut(item: Item, tokenizer: Any, limit: int | None) -> Item:
    """With no more of the document than the limit allows."""
    if limit is None:
        return item
    return Item(item.key, truncate_text(item.document, tokenizer, limit), item.question, item.references)


def _measure(
    settings: EvaluationSettings,
    chosen: Task,
    measures: Sequence[Metric],
    items: Sequence[Item],
    told: dict[tuple[str, int], dict[str, Any]],
    left_out: list[str],
    made_by: dict[str, Any],
) -> Result:
    references = [item.references for item in items]
    by_seed: dict[int, Columns] = {}
    for seed in settings.seeds:
        answers = [told[item.key, seed]["answer"] for item in items]
        parts = [measure.scores(answers, references) for measure in measures]
        by_seed[seed] = {name: np.array(scores) for part in parts for name, scores in part.items()}
    first = by_seed[settings.seeds[0]]
    columns = {name: np.mean([each[name] for each in by_seed.values()], axis=0) for name in first}
    seeds = {str(seed): means(each) for seed, each in by_seed.items()}
    numbers = {document: number for number, document in enumerate(dict.fromkeys(item.document for item in items))}
    documents = [numbers[item.document] for item in items]
    return Result(
        task=chosen.name,
        task_version=chosen.version,
        metrics=intervals(columns, documents),
        scores={name: [float(score) for score in scores] for name, scores in columns.items()},
        keys=[item.key for item in items],
        documents=documents,
        settings=json.loads(json.dumps(asdict(settings))),
        by_seed=seeds,
        left_out=left_out,
        seconds=sum(told[item.key, seed]["seconds"] for item in items for seed in settings.seeds),
        peak_bytes=made_by["peak_bytes"],
        versions=made_by["versions"],
    )


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
