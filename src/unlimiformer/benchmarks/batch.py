"""Documents an hour: a plain loop against the runner, with one worker and with two. Methods take turns."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..batch import Job, find_documents
from ..batch import run as run_all
from ..hub.loading import load
from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat
from ..text.tokenization import truncate_text
from ..utils.jsonl import read_rows
from ..utils.system import cpu_count

QUESTION = "Who is the king?"
_LOOP = "plain loop"
_RUNS = {"1 worker, one by one": (1, 1), "1 worker": (1, 8), "2 workers": (2, 8)}  # workers, documents at once
_GENERATION: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "num_beams": 1}


@dataclass(frozen=True)
class ThroughputRow:
    """One method. `of_loop`: its documents an hour, of the plain loop's. `waiting`: the share of the time in which its
    one worker had nothing to do; None for several, and for a loop."""

    method: str
    workers: int
    documents_per_hour: float
    of_loop: float
    starting_seconds: float
    waiting: float | None


def shelf(texts: Sequence[str], documents: int, tokenizer: Any, tokens: int) -> list[str]:
    """Documents of an eighth of so many tokens to all of them, cut from real texts."""
    cut = []
    for number in range(documents):
        text = texts[number % len(texts)]
        wanted = tokens * (1 + 7 * number // max(1, documents - 1)) // 8
        start = (number * 7919) % max(1, len(text) - 6 * wanted)
        cut.append(truncate_text(text[start : start + 6 * wanted], tokenizer, wanted))
    return cut


def run(
    model: str,
    texts: Sequence[str],
    documents: int = 24,
    tokens: int = 4096,
    repeats: int = 3,
    log: Callable[[str], None] = lambda line: None,
) -> list[ThroughputRow]:
    """Measures all methods."""
    loaded = load(model)
    words = shelf(texts, documents, loaded[1], tokens)
    best: dict[str, tuple[float, float, float | None]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "shelf.jsonl"
        source.write_text("".join(json.dumps({"document": text}) + "\n" for text in words), encoding="utf-8")
        for turn in range(repeats):
            for name, (workers, together) in {_LOOP: (1, 1), **_RUNS}.items():
                log(f"{name}, {turn + 1} of {repeats}")
                found: tuple[float, float, float | None]
                if name == _LOOP:
                    found = (_loop(model, loaded, words, cpu_count()), 0.0, None)
                else:
                    found = _run(Path(scratch) / f"{turn}-{name}", model, workers, together)
                best[name] = min(best.get(name, found), found)
    loop = best[_LOOP][0]
    return [
        ThroughputRow(name, _RUNS.get(name, (1, 1))[0], 3600 * documents / seconds, loop / seconds, starting, waiting)
        for name, (seconds, starting, waiting) in best.items()
    ]


def report(rows: Sequence[ThroughputRow], **about: Any) -> dict[str, Any]:
    """For JSON."""
    return {**about, "rows": [asdict(row) for row in rows]}


def _loop(model: str, loaded: tuple[Any, Any], texts: Sequence[str], threads: int) -> float:
    """What somebody writes who has no runner."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    asking = QuestionFormat.for_model(model)
    with Unlimiformer(*loaded) as wrapped:
        started = time.perf_counter()
        for text in texts:
            reply = DocumentQA(wrapped, text, asking).ask(QUESTION, provenance=True, **_GENERATION)
            assert reply.output.provenance is not None
            reply.output.provenance.passages(1)
        seconds = time.perf_counter() - started
    torch.set_num_threads(before)
    return seconds


def _run(folder: Path, model: str, workers: int, batch_size: int) -> tuple[float, float, float | None]:
    """Seconds of the work, of starting, and the share of the former in which one worker waited."""
    folder.mkdir()
    work = Job("ask", model, generation=_GENERATION, questions=(QUESTION,), batch_size=batch_size)
    documents = find_documents(folder.parent / "shelf.jsonl")
    summary = run_all(documents, folder / "out.jsonl", work, workers)
    busy = sum(row["seconds"] for row in read_rows(folder / "out.jsonl"))
    return summary.seconds, summary.starting_seconds, 1 - busy / summary.seconds if workers == 1 else None
