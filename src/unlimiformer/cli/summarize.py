"""`unlimiformer summarize`: summarise a document of any length, and show the passages behind every sentence."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import StorageError
from ..utils.files import cache_folder
from .console import messages, progress_bar
from .loading import open_wrapped
from .options import DEFAULT_MODEL, AsJson, Device, Model, Source, config_options, generation_options, require_at_least

if TYPE_CHECKING:
    from ..summaries import ChapterSummary, Summary

_QUOTE = 200  # characters of a passage that are shown


@config_options("top_k", "focus", "window", "overlap", "dtype", "compute_dtype", "store", "recall", "batch_size")
@generation_options("num_beams", "length_penalty", "no_repeat_ngram_size", "repetition_penalty")
def command(
    file: Source,
    settings: dict[str, Any],
    generation: dict[str, Any],
    words: Annotated[
        int | None, typer.Option(help="About how many words; default: 200, or 60 for each chapter.")
    ] = None,
    by_chapter: Annotated[bool, typer.Option("--by-chapter", help="Summarise every chapter on its own.")] = False,
    method: Annotated[
        str | None,
        typer.Option(
            help="direct, hierarchical, grounded, extractive or leading; default: what is best for the model."
        ),
    ] = None,
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    passages: Annotated[int, typer.Option(help="Number of passages shown with every sentence.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Summarise a document of any length, or a memory of it.

    A decoder-only model reads the document section by section. What it wrote is kept in the cache: after an
    interruption the same command continues.
    """
    words = words if words is not None else 60 if by_chapter else 200
    require_at_least(1, words=words)
    require_at_least(0, passages=passages)
    source, wrapped = open_wrapped(file, model, settings, device)
    from ..memory import Memory
    from ..qa import QuestionFormat
    from ..text.sources import read_document

    document = source if isinstance(source, Memory) else read_document(source)
    printer = _Printer()
    arguments: dict[str, Any] = {
        "words": words,
        "by_chapter": by_chapter,
        "method": method,
        "question_format": QuestionFormat.for_model(model),
        "on_part": (lambda part: None) if as_json else printer.show,
        **generation,
    }
    with progress_bar("Summarising", "sections") as progress:
        try:
            summary = wrapped.summarize(document, folder=_draft_folder(document.text), progress=progress, **arguments)
        except StorageError as error:
            if printer.count:
                raise
            messages.print(f"nothing is kept for a continuation: {error}", markup=False)
            summary = wrapped.summarize(document, progress=progress, **arguments)
    if not summary.sentences:
        messages.print("the model wrote no sentence that the document supports; try --method hierarchical")
    if as_json:
        typer.echo(json.dumps(summary.to_dict(), indent=1, ensure_ascii=False))
    else:
        printer.show_passages(summary, passages)


def _draft_folder(text: str) -> Path:
    return cache_folder() / "summaries" / sha256(text.encode("utf-8", "replace")).hexdigest()[:24]


class _Printer:
    """Prints the sentences of a summary as they come, with numbers, and then the passages of each number."""

    def __init__(self) -> None:
        self.count = 0

    def show(self, part: ChapterSummary) -> None:
        """Print a part of the summary."""
        numbered = []
        for sentence in part.sentences:
            self.count += 1
            numbered.append(f"{sentence.text} [{self.count}]")
        title = "" if part.title is None else f"{part.title}\n"
        typer.echo(f"{title}{' '.join(numbered)}\n")

    def show_passages(self, summary: Summary, count: int) -> None:
        """Print the best passages of every sentence."""
        for number, sentence in enumerate(summary.sentences, 1):
            for passage in sentence.passages[:count]:
                quote = shorten(summary.quote(passage), _QUOTE, placeholder=" …")
                place = summary.citations.at(passage.start) or f"at {passage.start / len(summary.document):.0%}"
                typer.echo(f"[{number}] {place}: {quote}")
