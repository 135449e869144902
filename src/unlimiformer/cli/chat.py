"""`unlimiformer chat`: ask about a document, one question after the other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from ..errors import InputError
from .ask import show_answer
from .console import messages, progress_bar
from .loading import open_wrapped
from .options import DEFAULT_MODEL, Device, Model, Passages, Source, config_options, require_at_least


@config_options("top_k", "focus", "window", "overlap", "selection", "dtype", "compute_dtype", "store", "batch_size")
def command(
    file: Source,
    settings: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    passages: Passages = 1,
) -> None:
    """Ask about a document of any length, one question after the other; a question may refer to the one before.

    Questions are read from standard input, one on a line. An empty line, Ctrl-D or Ctrl-C ends the conversation.
    """
    require_at_least(0, passages=passages)
    if file == "-":
        raise InputError("the document is standard input, from which questions are read; expected a file or a memory")
    source, wrapped = open_wrapped(file, model, settings, device)
    from ..qa import Conversation, DocumentQA, QuestionFormat

    document = DocumentQA(wrapped, source, QuestionFormat.for_model(model))
    conversation = Conversation(document)
    traced = wrapped.engine.supports_provenance and passages > 0
    with progress_bar("Indexing") as progress:
        document.prepare(progress)
    for question in _questions():
        answer = conversation.ask(question, provenance=traced)
        understood = conversation.turns[-1].question
        if understood != question:
            messages.print(f"({understood})", style="dim", markup=False)
        show_answer(answer, passages)


def _questions() -> Iterator[str]:
    """The questions that a user types, or the lines of a file."""
    is_terminal = sys.stdin.isatty()
    while True:
        if is_terminal:
            messages.print("> ", end="")
        try:
            line = sys.stdin.readline().strip()
        except KeyboardInterrupt:
            return
        if not line:
            return
        if not is_terminal:
            typer.echo(f"\n> {line}")
        yield line
