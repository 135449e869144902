"""How well each way summarises whole documents: ROUGE, entities, supported sentences and time, for any JSONL files.

Every summary is stored as soon as it is written; the same command continues after an interruption.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..engines.answer_end import loop_start
from ..errors import InputError
from ..evaluation import EvaluationSettings, Result, compare, evaluate
from ..evaluation.metrics import EntityRecall
from ..evaluation.run import PREDICTIONS
from ..memory.encode import Progress
from ..summaries import summary_tokens
from ..text.questions import asks_for_summary
from ..utils.csv_text import to_csv
from ..utils.files import atomic_write
from ..utils.jsonl import read_rows
from .answers import QUESTIONS, TABLE, check_methods, data_name, read_documents, write_sample

SUMMARIES = "summaries.csv"
_METRICS = ("rouge", "entities")


@dataclass(frozen=True)
class SummariesRow:
    """One line of the table; scores are percentages.

    Parameters
    ----------
    data : name of the file.
    words : mean length of a summary.
    rouge1, rouge2, rougeL, entities : means over all documents; the best reference counts.
    rouge1_difference, rouge1_p : to the first method, and the two-sided p-value.
    entities_difference, entities_p : the same of the recall of entities.
    supported : share of the sentences with an entity whose passages name one of them; None if there are no passages.
    loops : share of the summaries that write four words three times.
    seconds : per document.
    """

    data: str
    method: str
    documents: int
    words: float
    rouge1: float
    rouge2: float
    rougeL: float
    entities: float
    rouge1_difference: float | None
    rouge1_p: float | None
    entities_difference: float | None
    entities_p: float | None
    supported: float | None
    loops: float
    seconds: float


def run(
    files: Sequence[Path],
    folder: Path,
    model: str,
    methods: Sequence[str],
    words: int,
    documents: int | None = None,
    device: str | None = None,
    log: Callable[[str], None] = lambda line: None,
    progress: Progress = lambda done, of: None,
) -> list[SummariesRow]:
    """Summarise the documents of every file with every method, and write the table and all summaries to the folder."""
    check_methods(methods)
    rows: list[SummariesRow] = []
    for file in files:
        place = folder / data_name(file)
        write_requests(file, place / QUESTIONS, documents)
        for method in methods:
            log(f"{place.name}: {method}")
            settings = EvaluationSettings(
                model,
                method=method,
                data=str(place / QUESTIONS),
                generation={"max_new_tokens": summary_tokens(words)},
                metrics=_METRICS,
                device=device,
            )
            evaluate(settings, place / method, log, progress)
        rows += _measure(place, methods)
        atomic_write(folder / TABLE, to_csv([asdict(row) for row in rows]))
        atomic_write(folder / SUMMARIES, to_csv(_lines(rows, folder)))
    return rows


def write_requests(source: Path, target: Path, documents: int | None) -> None:
    """Write the documents of a file that have a reference summary, and ask for a summary of each.

    The summary is "summary", or the answer to the first question that asks for one. `documents` of them are taken, the
    first ones.
    """
    lines = []
    for row in read_documents(source, "summary"):
        answers = [q["answer"] for q in row.get("questions") or [] if asks_for_summary(q.get("question"))]
        reference = row.get("summary") or (answers[0] if answers else None)
        if reference is not None:
            lines.append(json.dumps({"document": row["document"], "answer": reference}, ensure_ascii=False))
    if not lines:
        raise InputError(
            f'{source} has no document with a "summary", or with a question such as "What is the plot of the story?"'
        )
    write_sample(target, "".join(f"{line}\n" for line in lines[:documents]), "documents")


def supported_share(sentences: Sequence[dict[str, Any]], find_entities: Callable[[str], set[str]]) -> float | None:
    """Share of the sentences with an entity whose passages name one of their entities; None if none has an entity."""
    supported = []
    for sentence in sentences:
        passages = " ".join(" ".join(sentence["passages"]).casefold().split())
        if entities := find_entities(sentence["text"]):
            supported.append(any(entity in passages for entity in entities))
    return statistics.mean(supported) if supported else None


def _measure(place: Path, methods: Sequence[str]) -> list[SummariesRow]:
    results = [Result.read(place / method) for method in methods]
    against = [{}, *compare([place / method for method in methods]).differences] if len(methods) > 1 else [{}]
    find_entities = EntityRecall().find_entities
    rows = []
    for method, result, differences in zip(methods, results, against, strict=True):
        predictions = list(read_rows(place / method / PREDICTIONS))
        means = {name: interval.value for name, interval in result.metrics.items()}
        sentences = [sentence for row in predictions for sentence in row.get("sentences") or []]
        share = supported_share(sentences, find_entities)
        rouge1, entities = differences.get("rouge1"), differences.get("entities")
        rows.append(
            SummariesRow(
                data=place.name,
                method=method,
                documents=len(predictions),
                words=statistics.mean(len(row["answer"].split()) for row in predictions),
                rouge1=means["rouge1"],
                rouge2=means["rouge2"],
                rougeL=means["rougeL"],
                entities=means["entities"],
                rouge1_difference=None if rouge1 is None else rouge1.value,
                rouge1_p=None if rouge1 is None else rouge1.p,
                entities_difference=None if entities is None else entities.value,
                entities_p=None if entities is None else entities.p,
                supported=None if share is None else 100 * share,
                loops=100 * statistics.mean(loop_start(row["answer"]) is not None for row in predictions),
                seconds=statistics.mean(row["seconds"] for row in predictions),
            )
        )
    return rows


def _lines(rows: Sequence[SummariesRow], folder: Path) -> list[dict[str, Any]]:
    return [
        {
            "data": row.data,
            "method": row.method,
            "summary": answer["answer"],
            "references": " | ".join(answer["references"]),
            "seconds": round(answer["seconds"], 2),
        }
        for row in rows
        for answer in read_rows(folder / row.data / row.method / PREDICTIONS)
    ]
