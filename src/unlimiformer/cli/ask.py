"""`unlimiformer ask`: answer questions about a document, and show the passages behind the answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .console import messages, progress_bar, size
from .loading import open_wrapped
from .options import (
    DEFAULT_MODEL,
    AsJson,
    Device,
    Model,
    Passages,
    ProvenanceFile,
    Source,
    check_provenance_file,
    config_options,
    generation_options,
    require_at_least,
)

if TYPE_CHECKING:
    from ..qa import Answer


@config_options(
    *("top_k", "focus", "window", "overlap", "selection", "positions", "dtype", "compute_dtype", "store", "recall"),
    "batch_size",
)
@generation_options("max_new_tokens", "num_beams", "length_penalty", "no_repeat_ngram_size", "repetition_penalty")
def command(
    file: Source,
    questions: Annotated[list[str], typer.Argument(help="One or more questions.")],
    settings: dict[str, Any],
    generation: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    passages: Passages = 1,
    provenance: ProvenanceFile = None,
    as_json: AsJson = False,
) -> None:
    """Answer questions about a document of any length, or about a memory of it.

    A decoder-only model indexes the document once for all questions. An encoder–decoder gets each question before every
    window, unless it was trained to get it in its decoder, or is given a memory.
    """
    require_at_least(0, passages=passages)
    if empty := [question for question in questions if not question.strip()]:
        raise InputError(f"a question is {empty[0]!r}; expected some words")
    check_provenance_file(provenance)
    if provenance is not None and len(questions) > 1:
        raise InputError(f"--provenance was given with {len(questions)} questions; expected one")
    source, wrapped = open_wrapped(file, model, settings, device)
    generation["provenance"] = wrapped.engine.supports_provenance and (passages > 0 or provenance is not None)
    from ..qa import DocumentQA, QuestionFormat

    document = DocumentQA(wrapped, source, QuestionFormat.for_model(model))
    rows = []
    for question in questions:
        with progress_bar("Indexing") as progress:
            answer = document.ask(question, progress, **generation)
        output, quotes = answer.output, answer.quotes(passages)
        row = {"question": question, "answer": answer.text, "seconds": answer.answer_seconds}
        rows.append({**row, "characters": len(output.memory.text) if quotes else 0, "passages": quotes})
        if not as_json:
            typer.echo(f"\n{question}")
            show_answer(answer, passages)
    if provenance is not None:
        if output.provenance is None:
            raise InputError("--provenance was given with selection 'top-k'; it is known for blocks only")
        output.provenance.save(provenance)
        messages.print(f"wrote {provenance}")
    memory = output.memory
    figures = {"source_tokens": len(memory), "windows": memory.windows, "memory_bytes": memory.nbytes}
    if as_json:
        typer.echo(json.dumps({"answers": rows, **figures}, indent=1, ensure_ascii=False))
    else:
        line = f"{len(memory):,} tokens in {memory.windows:,} windows · memory {size(memory.nbytes)}"
        messages.print(line, style="dim")


def show_answer(answer: Answer, passages: int) -> None:
    """Print an answer and the passages that it came from."""
    typer.echo(f"  {answer.text.strip()}")
    for passage in answer.quotes(passages):
        quote = " ".join(passage["text"].split())
        place = passage["location"] or f"at {passage['start'] / len(answer.output.memory.citations.text):.0%}"
        typer.echo(f"    {place}: … {quote} …")
