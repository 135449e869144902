"""How well each method answers questions about documents, and what it costs: one table for any JSONL files.

Every answer is stored as soon as it is generated; the same command continues after an interruption.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..engines.answer_end import loop_start
from ..errors import InputError
from ..evaluation import METHODS, EvaluationSettings, Result, compare, evaluate
from ..evaluation.run import PREDICTIONS
from ..hub.loading import load_tokenizer
from ..memory.encode import Progress
from ..utils.csv_text import to_csv
from ..utils.files import atomic_write
from ..utils.jsonl import JSON_ERRORS, read_rows

QUESTIONS, TABLE, ANSWERS = "questions.jsonl", "table.csv", "answers.csv"
_METRICS = ("f1", "rouge")


@dataclass(frozen=True)
class AnswersRow:
    """One line of the table; scores are percentages.

    Parameters
    ----------
    data : name of the file.
    f1, rouge1, rougeL : means over all questions.
    evidence : share of the evidence that the model saw; None if it is unknown.
    metric : "f1", or "rouge1" if the right answers are long.
    difference, p : of this metric, to the first method, and its two-sided p-value.
    loops : share of the answers that write four words three times.
    read_seconds : reading the documents, per thousand tokens; None if each document has one question.
    answer_seconds : per question, without reading.
    """

    data: str
    method: str
    questions: int
    f1: float
    rouge1: float
    rougeL: float
    evidence: float | None
    metric: str
    difference: float | None
    p: float | None
    loops: float
    read_seconds: float | None
    answer_seconds: float


@dataclass(frozen=True)
class QuestionSample:
    """Which questions of a file are asked.

    Parameters
    ----------
    documents : number of documents, taken at random; None for all.
    questions : questions of each document, taken at random; None for all.
    one_book : join all documents to one, each under its title; questions name the title.
    """

    documents: int | None = None
    questions: int | None = 5
    one_book: bool = False
    seed: int = 0

    def write(self, source: Path, target: Path) -> None:
        """Write the sampled questions to a JSONL file; refuse if it exists with other questions."""
        rows = read_documents(source)
        if self.documents is not None and self.documents < len(rows):
            rows = random.Random(self.seed).sample(rows, self.documents)
        if self.questions is not None:
            rows = [{**row, "questions": self._sample(row, number)} for number, row in enumerate(rows)]
        rows = [join_documents(rows)] if self.one_book else rows
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_sample(target, lines, "questions, of another seed, number or file")

    def _sample(self, row: dict[str, Any], number: int) -> list[dict[str, Any]]:
        questions = row["questions"]
        count = min(self.questions or len(questions), len(questions))
        return random.Random(f"{self.seed} {number}").sample(questions, count)


def join_documents(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One document of several, each under its title; every question names its title."""
    text, questions = "", []
    for number, row in enumerate(rows, 1):
        title = str(row.get("id", f"Part {number}")).replace("-", " ").title()
        text += f"{title}\n\n"
        for question in row["questions"]:
            spans = [[start + len(text), end + len(text)] for start, end in question.get("spans", [])]
            asked = f"In the story “{title}”: {question['question']}"
            questions.append({**question, "question": asked, **({"spans": spans} if spans else {})})
        text += row["document"].rstrip() + "\n\n\n"
    return {"id": "one-book", "document": text, "questions": questions}


def run(
    files: Sequence[Path],
    folder: Path,
    model: str,
    methods: Sequence[str],
    sample: QuestionSample,
    config: dict[str, Any],
    device: str | None = None,
    log: Callable[[str], None] = lambda line: None,
    progress: Progress = lambda done, of: None,
) -> list[AnswersRow]:
    """Answer the questions of every file with every method, and write the table and all answers to the folder."""
    check_methods(methods)
    rows: list[AnswersRow] = []
    for file in files:
        place = folder / (data_name(file) + ("-one-book" if sample.one_book else ""))
        sample.write(file, place / QUESTIONS)
        for method in methods:
            log(f"{place.name}: {method}")
            settings = EvaluationSettings(
                model,
                method=method,
                data=str(place / QUESTIONS),
                config=config,
                metrics=_METRICS,
                device=device,
            )
            evaluate(settings, place / method, log, progress)
        rows += summarize(place, methods, model)
        write_tables(rows, folder)
    return rows


def check_methods(methods: Sequence[str]) -> None:
    """Raise `InputError` for a method that there is not."""
    if unknown := [method for method in methods if method not in METHODS]:
        raise InputError(f"no method {unknown[0]!r}; expected some of: {', '.join(METHODS)}")


def write_sample(target: Path, lines: str, others: str) -> None:
    """Write what is asked to a JSONL file; refuse if it exists with other lines, which a message calls `others`."""
    if target.exists() and target.read_text(encoding="utf-8") != lines:
        raise InputError(
            f"{target} holds other {others}; repeat the first command to continue it, or give another folder"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, lines)


def data_name(file: Path) -> str:
    """Folder of a file's runs: the names of its folder and of itself."""
    return f"{file.absolute().parent.name}-{file.stem}"


def summarize(place: Path, methods: Sequence[str], model: str) -> list[AnswersRow]:
    """The lines of the table for one file, whose runs are in a folder."""
    results = [Result.read(place / method) for method in methods]
    documents = [row["document"] for row in read_rows(place / QUESTIONS)]
    thousands = sum(_count_tokens(documents, model)) / 1000
    against = [{}, *compare([place / method for method in methods]).differences] if len(methods) > 1 else [{}]
    rows = []
    for method, result, differences in zip(methods, results, against, strict=True):
        predictions = list(read_rows(place / method / PREDICTIONS))
        means = {name: interval.value for name, interval in result.metrics.items()}
        metric = "f1" if _is_short(predictions) else "rouge1"
        reading, answering = split_seconds(predictions, result)
        difference = differences.get(metric)
        rows.append(
            AnswersRow(
                data=place.name,
                method=method,
                questions=len(predictions),
                f1=means["f1"],
                rouge1=means["rouge1"],
                rougeL=means["rougeL"],
                evidence=means.get("evidence"),
                metric=metric,
                difference=None if difference is None else difference.value,
                p=None if difference is None else difference.p,
                loops=100 * statistics.mean(loop_start(row["answer"]) is not None for row in predictions),
                read_seconds=None if reading is None else reading / thousands,
                answer_seconds=answering,
            )
        )
    return rows


def split_seconds(predictions: Sequence[dict[str, Any]], result: Result) -> tuple[float | None, float]:
    """Seconds for reading all documents, and the mean for answering a question.

    The first question of a document takes longer than the others by the time of reading it.
    """
    document_of = dict(zip(result.keys, result.documents, strict=True))
    by_document: dict[int, list[float]] = {}
    for row in predictions:
        by_document.setdefault(document_of[row["key"]], []).append(row["seconds"])
    later = [seconds for times in by_document.values() for seconds in times[1:]]
    if not later:
        return None, statistics.mean(row["seconds"] for row in predictions)
    reading = sum(
        times[0] - (statistics.mean(times[1:]) if len(times) > 1 else statistics.mean(later))
        for times in by_document.values()
    )
    return max(0.0, reading), statistics.mean(later)


def write_tables(rows: Iterable[AnswersRow], folder: Path) -> None:
    """Write the table, and all answers of its runs, as CSV files."""
    rows = list(rows)
    atomic_write(folder / TABLE, to_csv([asdict(row) for row in rows]))
    atomic_write(folder / ANSWERS, to_csv(list(_answer_lines(rows, folder))))


def _answer_lines(rows: Sequence[AnswersRow], folder: Path) -> Iterator[dict[str, Any]]:
    for row in rows:
        for answer in read_rows(folder / row.data / row.method / PREDICTIONS):
            yield {
                "data": row.data,
                "method": row.method,
                "question": answer["question"],
                "answer": answer["answer"],
                "references": " | ".join(answer["references"]),
                "evidence": answer.get("evidence"),
                "seconds": round(answer["seconds"], 2),
            }


def _is_short(predictions: Sequence[dict[str, Any]]) -> bool:
    """Whether most right answers are a few words."""
    return statistics.median(len(row["references"][0].split()) for row in predictions) <= 20


def _count_tokens(documents: Sequence[str], model: str) -> list[int]:
    tokenizer = load_tokenizer(model)
    return [len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in documents]


def read_documents(source: Path, other_field: str = "questions") -> list[dict[str, Any]]:
    """The objects of a JSONL file, each with a document, and with questions about it or with another field."""
    rows = []
    try:
        lines = source.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read {source} ({error}); expected a JSONL file") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else None
        except JSON_ERRORS:
            row = {}
        if row is None:
            continue
        if (
            not isinstance(row, dict)
            or not isinstance(row.get("document"), str)
            or not (row.get("questions") or row.get(other_field))
        ):
            raise InputError(
                f'{source}, line {number} has no "document" or no "questions"; expected an object with both: a text, '
                'and a list of {"question", "answer"}'
            )
        rows.append(row)
    return rows
