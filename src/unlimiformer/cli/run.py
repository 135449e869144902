"""`unlimiformer run`: a shelf of documents, by worker processes or on a Ray cluster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UnlimiformerError
from .console import messages, quiet_libraries
from .options import (
    DEFAULT_MODEL,
    AsJson,
    ComputeDtype,
    Dtype,
    Focus,
    Model,
    Overlap,
    PositionsOption,
    Recall,
    Selection,
    StoreOption,
    TopK,
    Window,
    fetch,
)

if TYPE_CHECKING:
    from ..batch import Status

_EVERY = 30.0  # seconds between lines of progress where there is no terminal


def command(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A JSONL file, or a folder of texts or memories.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSONL, a row a document; new, or to go on with.")],
    task: Annotated[str, typer.Option(help="summarize, ask or index.")],
    question: Annotated[
        list[str] | None, typer.Option(help="ask: about every document; again for more. Lines may have their own.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    memories: Annotated[
        str | None, typer.Option(help="index: folder or URL of the memories; default: beside the output.")
    ] = None,
    pattern: Annotated[str, typer.Option(help="Which files of a folder are documents.")] = "**/*.txt",
    workers: Annotated[
        int | None, typer.Option(help="Each has a model; default: one a GPU, or one a core that has room.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Of each worker; default: the cores, shared.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Workers on a Ray cluster: its address, auto, or local.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(help="Of each worker on a Ray cluster; default: 1 if it has any.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that a document may take; then it failed.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Do again what failed before.")] = False,
    batch_size: Annotated[int, typer.Option(help="Short documents of like length answered at once.")] = 8,
    windows: Annotated[int, typer.Option("--windows", help="Windows encoded at once.")] = 4,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer (64) or summary (256).")] = None,
    num_beams: Annotated[int, typer.Option(help="1 is greedy.")] = 1,
    no_repeat_ngram: Annotated[int, typer.Option(help="No so many tokens in a row twice; 0 allows it.")] = 0,
    passages: Annotated[int, typer.Option(help="Kept with every answer: those it came from.")] = 1,
    top_k: TopK = None,
    focus: Focus = None,
    window: Window = None,
    overlap: Overlap = None,
    selection: Selection = None,
    positions: PositionsOption = None,
    dtype: Dtype = None,
    store: StoreOption = None,
    recall: Recall = 0.99,
    compute_dtype: ComputeDtype = None,
    device: Annotated[
        str | None, typer.Option(help="Where models run: cpu, cuda, cuda:1, mps; auto: one over all of them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarise, question or index thousands of documents.

    Rows are written as documents finish. Whatever is killed, the same command goes on, and every document has one row.
    The rows of --task index are an input of --task ask.
    """
    for option, value in (("--num-beams", num_beams), ("--max-new-tokens", max_new_tokens), ("--threads", threads)):
        if value is not None and value < 1:
            raise UnlimiformerError(f"{option} is {value}; expected at least 1")
    quiet_libraries()
    from ..batch import Job, find_documents
    from ..batch import run as go

    config = {
        "top_k": top_k,
        "focus": focus,
        "window": window,
        "overlap": overlap,
        "selection": selection,
        "positions": positions,
        "dtype": dtype,
        "store": store,
        "recall": recall,
        "compute_dtype": compute_dtype,
        "batch_size": windows,
    }
    generation: dict[str, Any] = {
        "max_new_tokens": max_new_tokens or (256 if task == "summarize" else 64),
        "num_beams": num_beams,
        "do_sample": False,
        "no_repeat_ngram_size": no_repeat_ngram,
    }
    if memories is not None and task != "index":
        raise UnlimiformerError(f"--memories was given with task {task!r}; expected task 'index'")
    beside = str(output.with_suffix(".memories").absolute()) if task == "index" else None
    work = Job(
        task=task,
        model=model,
        config={name: value for name, value in config.items() if value is not None},
        generation={} if task == "index" else generation,
        questions=tuple(question or ()),
        passages=passages,
        memories=memories or beside,
        relative_to=str(output.absolute().parent),
        batch_size=batch_size,
        device=device,
    )
    if output.resolve() == source.resolve():
        raise UnlimiformerError(f"--output is the input, {source}; expected another file")
    with messages.status("Looking for documents"):
        documents = find_documents(source, pattern)
    if task == "ask" and not question and not any(document.questions for document in documents):
        raise UnlimiformerError('there is no question; expected --question, or "question" or "questions" in the lines')
    fetch(model)
    settled = (workers, retry_failed, ray, gpus, threads, timeout)

    def log(line: str) -> None:
        messages.print(line, style="dim", markup=False, soft_wrap=True)

    try:
        with _shown(len(documents)) as progress, redirect_stdout(sys.stderr):  # Ray talks
            summary = go(documents, output, work, *settled, log, progress)
    except KeyboardInterrupt:
        messages.print(f"interrupted; the same command goes on where it stopped ({output})", markup=False)
        raise
    if as_json:
        typer.echo(json.dumps({"output": str(output), **asdict(summary)}, indent=1))
    else:
        messages.print(_told(summary, output), markup=False, soft_wrap=True)
    if summary.failed:
        raise typer.Exit(1)


def _told(summary: Any, output: Path) -> str:
    told = f"{output}: {summary.done:,} of {summary.documents:,} documents"
    if summary.seconds:
        now = summary.done - summary.done_before
        told += f", {now:,} of them now, in {summary.seconds:,.1f} s ({summary.documents_per_hour:,.0f} an hour"
        told += f", {_workers(summary.workers)}{f', {summary.deaths} replaced' if summary.deaths else ''})"
    if summary.failed:
        told += f"; {summary.failed:,} failed: their rows say why, and --retry-failed does them again"
    return told


@contextmanager
def _shown(documents: int) -> Iterator[Callable[[Status], None]]:
    """A bar with an estimate; without a terminal, a line now and then."""
    if not messages.is_terminal:
        told = [time.monotonic()]

        def line(status: Status) -> None:
            if time.monotonic() - told[0] >= _EVERY:
                told[0] = time.monotonic()
                messages.print(_status(status), style="dim")

        yield line
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.description}"))
    with Progress(*columns, console=messages, transient=True) as bars:
        bar = bars.add_task(f"starting workers for {documents:,} documents", total=1.0)
        yield lambda status: bars.update(bar, completed=status.share, description=_status(status))


def _status(status: Status) -> str:
    told = f"{status.done:,} of {status.documents:,} documents"
    told += f" · {status.failed:,} failed" if status.failed else ""
    told += f" · {_workers(status.workers)}" if status.workers else " · starting"
    return told if status.left is None else f"{told} · {_duration(status.left)} left"


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
