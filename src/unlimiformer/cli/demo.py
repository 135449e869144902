"""`unlimiformer demo`: a model answers questions about a whole novel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..utils.system import peak_memory
from .console import messages, progress_bar, size
from .loading import load_wrapped, make_config, read_texts
from .options import DEFAULT_MODEL, AsJson, Device, Model, Text, config_options

NOVEL = "carroll/alice"
QUESTIONS = (
    "What was the Caterpillar smoking?",
    "What did the baby turn into?",
    "What were the mallets in the game of croquet?",
)


@config_options("top_k")
def command(
    settings: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    text: Text = NOVEL,
    question: Annotated[list[str] | None, typer.Option(help="A question; can be given several times.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw where the model looked, as a PNG file.")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Ask questions about a long text, and compare with the truncated model and with word search.

    Without --question, a fact is put into the text and asked for; the default novel gets three more questions.
    """
    content = "\n\n".join(read_texts(text))
    wrapped = load_wrapped(model, make_config(settings), device)
    from .. import demo
    from ..qa import QuestionFormat
    from ..tasks.synthetic import DEMO_FACT, plant_facts

    questions = question
    if not questions:
        content = plant_facts(content, [DEMO_FACT])
        questions = [*(QUESTIONS if text == NOVEL else ()), DEMO_FACT.question]
        messages.print(f"put into {text} at {DEMO_FACT.place:.0%}: {DEMO_FACT.sentence}")
    answers = []
    with progress_bar("Indexing") as progress:
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


def _show(answer: Any, text: str) -> None:
    typer.echo(f"\n{answer.question}")
    typer.echo(f"  first {answer.window:,} tokens".ljust(26) + answer.truncated)
    typer.echo("  word search (BM25)".ljust(26) + answer.word_search)
    typer.echo("  unlimited".ljust(26) + answer.unlimited)
    for passage in answer.passages:
        quote = " ".join(text[passage.start : passage.end].split())
        typer.echo(f"    {passage.weight:4.0%} of its attention, at {passage.start / len(text):.0%}: … {quote} …")
    typer.echo(
        f"  {answer.source_tokens:,} tokens indexed in {answer.index_seconds:.1f} s, answered in "
        f"{answer.answer_seconds:.1f} s, {size(answer.memory_bytes)} of states"
    )
