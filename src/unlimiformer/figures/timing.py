"""Time per example against the length of its input (figure 4 of the paper)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat
from ..text.tokenization import truncate_text
from .output import FigureRow, write_figure


def run(
    wrapped: Unlimiformer,
    question_format: QuestionFormat,
    text: str,
    lengths: Sequence[int],
    new_tokens: int,
    repeats: int,
    folder: Path,
    log: Callable[[str], None],
) -> tuple[list[FigureRow], list[Path]]:
    """Time indexing and answering together: the plain model, with retrieval, and for encoder–decoders also as SLED.

    The plain model sees one window of an encoder–decoder, or all that a decoder-only model's context holds. `relative`
    is a method's time divided by the plain model's for the same input.

    Parameters
    ----------
    text : its beginning is cut to each of the lengths (in tokens)
    new_tokens : exact number of tokens of every answer
    repeats : measurements of each method, which take turns; the fastest counts
    """
    generation = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
    encoder_decoder = wrapped.engine.kind == "encoder-decoder"
    methods = ["truncate", "unlimiformer", "sled"] if encoder_decoder else ["full", "unlimiformer"]
    rows: list[FigureRow] = []
    text_length = len(wrapped.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    for length in sorted({min(length, text_length) for length in lengths}):
        document = truncate_text(text, wrapped.tokenizer, length)
        best = dict.fromkeys(methods, float("inf"))
        for _ in range(repeats):
            for method in methods:
                log(f"{length:,} tokens, {method}")
                qa = DocumentQA(wrapped, document, question_format)
                best[method] = min(best[method], _time_summary(qa, method, generation))
        rows += [
            {"tokens": length, "method": method, "seconds": seconds, "relative": seconds / best[methods[0]]}
            for method, seconds in best.items()
        ]
    return rows, write_figure(folder, "time", rows, lambda _, axes: _draw(axes, rows), panels=2)


def _time_summary(qa: DocumentQA, method: str, generation: dict[str, Any]) -> float:
    """Return the seconds that a summary of the document takes with a method."""
    started = time.perf_counter()
    with qa.wrapped.engine.full_attention() if method == "sled" else nullcontext():
        if method in ("truncate", "full"):
            qa.ask_truncated(None, **generation)
        else:
            qa.ask(None, **generation)
    return time.perf_counter() - started


def _draw(axes: Any, rows: Sequence[FigureRow]) -> None:
    for panel, column in zip(axes, ("seconds", "relative"), strict=True):
        for method in dict.fromkeys(row["method"] for row in rows):
            points = [row for row in rows if row["method"] == method]
            panel.plot([row["tokens"] for row in points], [row[column] for row in points], marker="o", label=method)
        panel.set(xlabel="input tokens", xscale="log", yscale="log")
        panel.legend()
    axes[0].set_ylabel("seconds per example")
    axes[1].set_ylabel("time relative to the plain model")
