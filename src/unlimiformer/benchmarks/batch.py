"""Documents per hour: a plain loop against the batch runner with one and with two workers."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..batch import Job, RunOptions, find_documents
from ..batch import run as run_batch
from ..hub.loading import load
from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat
from ..text.tokenization import truncate_text
from ..utils.jsonl import read_rows
from ..utils.system import cpu_count
from .report import report

__all__ = ["QUESTION", "ThroughputRow", "cut_documents", "report", "run"]

QUESTION = "Who is the king?"
_LOOP = "plain loop"
_RUNS = {"1 worker, one by one": (1, 1), "1 worker": (1, 8), "2 workers": (2, 8)}  # workers, batch size
_GENERATION: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "num_beams": 1}


@dataclass(frozen=True)
class ThroughputRow:
    """The throughput of one method.

    Parameters
    ----------
    of_loop : documents per hour divided by those of the plain loop
    starting_seconds : time until the first worker had loaded its model; not part of the throughput
    waiting : share of the time in which a single worker was idle; None for several workers and for the loop
    """

    method: str
    workers: int
    documents_per_hour: float
    of_loop: float
    starting_seconds: float
    waiting: float | None


@dataclass(frozen=True)
class _Measurement:
    seconds: float
    starting_seconds: float = 0.0
    waiting: float | None = None


def cut_documents(texts: Sequence[str], count: int, tokenizer: Any, tokens: int) -> list[str]:
    """Cut documents out of real texts; the first has an eighth of `tokens`, the last has `tokens`."""
    documents = []
    for index in range(count):
        text = texts[index % len(texts)]
        length = tokens * (1 + 7 * index // max(1, count - 1)) // 8
        start = (index * 7919) % max(1, len(text) - 6 * length)
        documents.append(truncate_text(text[start : start + 6 * length], tokenizer, length))
    return documents


def run(
    model: str,
    texts: Sequence[str],
    documents: int = 24,
    tokens: int = 4096,
    repeats: int = 3,
    *,
    log: Callable[[str], None] = lambda line: None,
) -> list[ThroughputRow]:
    """Measure every method on the same documents; methods take turns, and the fastest repeat of each counts.

    Parameters
    ----------
    documents : number of documents, cut out of `texts`
    tokens : length of the longest document
    """
    model_and_tokenizer = load(model)
    contents = cut_documents(texts, documents, model_and_tokenizer[1], tokens)
    best: dict[str, _Measurement] = {}
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "documents.jsonl"
        source.write_text("".join(json.dumps({"document": text}) + "\n" for text in contents), encoding="utf-8")
        for repeat in range(repeats):
            for name in (_LOOP, *_RUNS):
                log(f"{name}, {repeat + 1} of {repeats}")
                if name == _LOOP:
                    measurement = _measure_loop(model, model_and_tokenizer, contents)
                else:
                    measurement = _measure_runner(source, Path(scratch) / f"{repeat}-{name}", model, *_RUNS[name])
                best[name] = min(best.get(name, measurement), measurement, key=lambda one: one.seconds)
    return [_row(name, documents, measurement, best[_LOOP]) for name, measurement in best.items()]


def _row(name: str, documents: int, measurement: _Measurement, loop: _Measurement) -> ThroughputRow:
    return ThroughputRow(
        method=name,
        workers=_RUNS.get(name, (1, 1))[0],
        documents_per_hour=3600 * documents / measurement.seconds,
        of_loop=loop.seconds / measurement.seconds,
        starting_seconds=measurement.starting_seconds,
        waiting=measurement.waiting,
    )


def _measure_loop(model: str, model_and_tokenizer: tuple[Any, Any], texts: Sequence[str]) -> _Measurement:
    """Ask about one document after the other in this process, with all cores."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(cpu_count())
    question_format = QuestionFormat.for_model(model)
    with Unlimiformer(*model_and_tokenizer) as wrapped:
        started = time.perf_counter()
        for text in texts:
            answer = DocumentQA(wrapped, text, question_format).ask(QUESTION, provenance=True, **_GENERATION)
            assert answer.output.provenance is not None
            answer.output.provenance.passages(1)
        seconds = time.perf_counter() - started
    torch.set_num_threads(threads_before)
    return _Measurement(seconds)


def _measure_runner(source: Path, folder: Path, model: str, workers: int, batch_size: int) -> _Measurement:
    """Ask about the same documents with the batch runner."""
    folder.mkdir()
    output = folder / "out.jsonl"
    job = Job("ask", model, generation=_GENERATION, questions=(QUESTION,), batch_size=batch_size)
    summary = run_batch(find_documents(source), output, job, RunOptions(workers=workers))
    busy = sum(row["seconds"] for row in read_rows(output))
    waiting = 1 - busy / summary.seconds if workers == 1 else None
    return _Measurement(summary.seconds, summary.starting_seconds, waiting)
