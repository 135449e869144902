"""`unlimiformer demo`: a model from the catalogue answers questions over a whole play."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..utils.system import peak_memory
from .console import messages, progress_bar, quiet_libraries, size
from .options import DEFAULT_MODEL, Model, fetch

TEXT = "shakespeare/hamlet"


def command(
    model: Model = DEFAULT_MODEL,
    text: Annotated[str, typer.Option(help="A name from `unlimiformer texts`, a file, or -.")] = TEXT,
    question: Annotated[list[str] | None, typer.Option(help="What to ask; can be given several times.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Tokens each head attends to, or that are chosen.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw where the model looked, as a PNG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an array of answers.")] = False,
) -> None:
    """Ask questions of a long text, and see what truncation would have answered.

    Without --question, sentences that answer three are planted in the text, far apart.
    """
    quiet_libraries()
    (content,) = fetch(model, text)
    with messages.status(f"Loading {model}"):
        from .. import demo
        from ..model import Unlimiformer
        from ..qa import QuestionFormat

        wrapped = Unlimiformer.from_pretrained(model, top_k=top_k)
    if question:
        questions = question
    else:
        content = demo.plant(content, demo.FACTS)
        questions = [fact.question for fact in demo.FACTS]
        for fact in demo.FACTS:
            messages.print(f"planted {fact.place:.0%} into {text}: {fact.sentence}")
    answers = []
    with progress_bar("Reading") as progress:
        for answer in demo.ask(wrapped, content, questions, QuestionFormat.for_model(model), progress):
            answers.append(answer)
            if not as_json:
                _show(answer, content)
    if picture is not None:
        demo.draw(answers, picture, text)
    if as_json:
        typer.echo(json.dumps([answer.figures() for answer in answers], indent=1, ensure_ascii=False))
    else:
        messages.print(f"peak memory of the process: {size(peak_memory())}", style="dim")


def _show(answer, text: str) -> None:
    typer.echo(f"\n{answer.question}")
    typer.echo(f"  truncated to the window   {answer.truncated}")
    typer.echo(f"  unlimited                 {answer.unlimited}")
    for passage in answer.passages:
        place = f"{100 * passage.start / len(text):.0f} % in"
        quoted = " ".join(text[passage.start : passage.end].split())
        typer.echo(f"    {passage.weight:4.0%} of its attention, {place}: … {quoted} …")
    typer.echo(
        f"  {answer.source_tokens:,} tokens read in {answer.encode_seconds:.1f} s, answered in "
        f"{answer.answer_seconds:.1f} s, {size(answer.memory_bytes)} of states"
    )
