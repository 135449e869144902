"""Time per example against the length of its input (the paper's figure 4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..engines import Seq2SeqEngine
from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat
from ..text.tokenization import truncate_text
from .output import FigureRow, write


def run(
    wrapped: Unlimiformer,
    asking: QuestionFormat,
    text: str,
    lengths: Sequence[int],
    new_tokens: int,
    repeats: int,
    folder: Path,
    log: Callable[[str], None],
) -> tuple[list[FigureRow], list[Path]]:
    """Reading and answering with so many new tokens: the plain model, ours, and SLED; the best of the repeats."""
    generation = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
    methods = ["truncate", "unlimiformer"]
    if isinstance(wrapped.engine, Seq2SeqEngine):
        methods.append("sled")
    rows: list[FigureRow] = []
    there = len(wrapped.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    for length in sorted({min(length, there) for length in lengths}):
        document = truncate_text(text, wrapped.tokenizer, length)
        best = dict.fromkeys(methods, float("inf"))
        for _ in range(repeats):
            for method in methods:
                log(f"{length:,} tokens, {method}")
                best[method] = min(best[method], _seconds(wrapped, asking, document, method, generation))
        rows += [{"tokens": length, "method": method, "seconds": seconds} for method, seconds in best.items()]
    return rows, write(folder, "time", rows, lambda _, axes: _draw(axes, rows))


def _seconds(
    wrapped: Unlimiformer, asking: QuestionFormat, document: str, method: str, generation: dict[str, Any]
) -> float:
    talk = DocumentQA(wrapped, document, asking)
    started = time.perf_counter()
    with _seeing(wrapped.engine, method):
        if method == "truncate":
            talk.truncated(None, **generation)
        else:
            talk.ask(None, **generation)
    return time.perf_counter() - started


def _seeing(engine: Any, method: str) -> Any:
    return engine.seeing_everything() if method == "sled" else nullcontext()


def _draw(axes: Any, rows: Sequence[FigureRow]) -> None:
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        axes.plot([row["tokens"] for row in mine], [row["seconds"] for row in mine], marker="o", label=method)
    axes.set(xlabel="input tokens", ylabel="seconds an example", xscale="log", yscale="log")
    axes.legend()
