"""`unlimiformer ask`: questions about a text of any length, and the passages that their answers came from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UnlimiformerError
from .console import messages, progress_bar, size
from .options import (
    AsJson,
    BatchSize,
    Device,
    Dtype,
    File,
    Focus,
    Model,
    Overlap,
    PositionsOption,
    ProvenanceFile,
    Selection,
    TopK,
    Window,
    check_provenance_file,
    open_wrapped,
)

if TYPE_CHECKING:
    from ..qa import Answer


def command(
    file: File,
    questions: Annotated[list[str], typer.Argument(help="One or more questions.")],
    model: Model,
    top_k: TopK = None,
    focus: Focus = None,
    window: Window = None,
    overlap: Overlap = None,
    selection: Selection = None,
    positions: PositionsOption = None,
    dtype: Dtype = None,
    device: Device = None,
    batch_size: BatchSize = 4,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 64,
    passages: Annotated[int, typer.Option(help="Passages shown beneath an answer.")] = 1,
    provenance: ProvenanceFile = None,
    as_json: AsJson = False,
) -> None:
    """Ask about a text of any length, or about a memory of it.

    A decoder-only model reads the text once for all questions. An encoder–decoder reads each question in front of every
    window, unless it was trained to be asked in its decoder, or is given a memory: then the question starts its answer.
    """
    if max_new_tokens < 1 or passages < 0:
        raise UnlimiformerError("--max-new-tokens must be at least 1 and --passages at least 0")
    if empty := [question for question in questions if not question.strip()]:
        raise UnlimiformerError(f"a question is {empty[0]!r}; expected some words")
    check_provenance_file(provenance)
    if provenance is not None and len(questions) > 1:
        raise UnlimiformerError(f"--provenance was given with {len(questions)} questions; expected one")
    given: dict[str, Any] = {
        "top_k": top_k,
        "focus": focus,
        "window": window,
        "overlap": overlap,
        "selection": selection,
        "positions": positions,
        "dtype": dtype,
        "batch_size": batch_size,
    }
    source, wrapped = open_wrapped(file, model, given, device)
    generation = {"max_new_tokens": max_new_tokens, "do_sample": False, "num_beams": 1}
    generation["provenance"] = wrapped.engine.supports_provenance and (passages > 0 or provenance is not None)
    from ..qa import DocumentQA, QuestionFormat

    talk, told = DocumentQA(wrapped, source, QuestionFormat.for_model(model)), []
    for question in questions:
        with progress_bar("Reading") as progress:
            reply = talk.ask(question, progress, **generation)
        output = reply.output
        told.append(_figures(question, reply, reply.quotes(passages)))
        if not as_json:
            _show(told[-1])
    if provenance is not None:
        if output.provenance is None:
            raise UnlimiformerError("--provenance was given with selection 'top-k'; it is known for blocks only")
        output.provenance.save(provenance)
        messages.print(f"wrote {provenance}")
    memory = output.memory
    figures = {"source_tokens": len(memory), "windows": memory.windows, "memory_bytes": memory.nbytes}
    if as_json:
        typer.echo(json.dumps({"answers": told, **figures}, indent=1, ensure_ascii=False))
    else:
        line = f"{len(memory):,} tokens in {memory.windows:,} windows · memory {size(memory.nbytes)}"
        messages.print(line, style="dim")


def _figures(question: str, reply: Answer, quotes: list[dict[str, Any]]) -> dict[str, Any]:
    told = {"question": question, "answer": reply.text, "seconds": reply.answering}
    return {**told, "characters": len(reply.output.memory.text) if quotes else 0, "passages": quotes}


def _show(told: dict[str, Any]) -> None:
    typer.echo(f"\n{told['question']}\n  {told['answer'].strip()}")
    for passage in told["passages"]:
        quoted = " ".join(passage["text"].split())
        typer.echo(f"    {passage['start'] / told['characters']:.0%} in: … {quoted} …")
