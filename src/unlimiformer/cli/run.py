"""`unlimiformer run`: process many documents with worker processes or on a Ray cluster."""

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

from ..errors import InputError
from .console import messages, quiet_libraries
from .evaluate import SummaryPrompt
from .loading import fetch_model
from .options import (
    DEFAULT_MODEL,
    AsJson,
    Device,
    Model,
    Passages,
    config_options,
    generation_options,
    require_at_least,
)

if TYPE_CHECKING:
    from ..batch import Status, Summary

_LOG_INTERVAL = 30.0  # seconds between lines of progress without a terminal


@config_options(
    *("top_k", "focus", "window", "overlap", "selection", "positions", "dtype", "compute_dtype", "store", "recall"),
    "batch_size",
)
@generation_options("max_new_tokens", "num_beams", "length_penalty", "no_repeat_ngram_size", "repetition_penalty")
def command(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A JSONL file, or a folder of texts or memories.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSONL file with one row per document.")],
    task: Annotated[str, typer.Option(help="summarize, ask or index.")],
    settings: dict[str, Any],
    generation: dict[str, Any],
    question: Annotated[
        list[str] | None, typer.Option(help="ask: a question about every document; can be given several times.")
    ] = None,
    summary_prompt: SummaryPrompt = None,
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    memories: Annotated[
        str | None, typer.Option(help="index: folder or URL for the memories; default: next to the output.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Files of a folder that are documents, as **/*.txt; default: known formats.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of workers, each with a model; default: one per GPU, or per core.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each worker; default: the cores, shared.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: its address, auto, or local.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(help="GPUs of each worker on a Ray cluster; default: 1 if it has any.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which a document has failed.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Process failed documents again.")] = False,
    documents_per_call: Annotated[int, typer.Option(help="Short documents answered in one call.")] = 8,
    passages: Passages = 1,
    as_json: AsJson = False,
) -> None:
    """Summarise, question or index thousands of documents.

    Rows are written as documents finish. After an interruption or a crash the same command continues, and every
    document gets exactly one row. The rows of --task index are an input of --task ask.
    """
    require_at_least(1, threads=threads, documents_per_call=documents_per_call)
    quiet_libraries()
    from ..batch import Job, RunOptions, find_documents
    from ..batch import run as run_batch

    if memories is not None and task != "index":
        raise InputError(f"--memories was given with task {task!r}; expected task 'index'")
    default_memories = str(output.with_suffix(".memories").absolute()) if task == "index" else None
    job = Job(
        task=task,
        model=model,
        config=settings,
        generation={} if task == "index" else generation,
        questions=tuple(question or ()),
        summary_prompt=summary_prompt,
        passages=passages,
        memories=memories or default_memories,
        relative_to=str(output.absolute().parent),
        batch_size=documents_per_call,
        device=device,
    )
    if output.resolve() == source.resolve():
        raise InputError(f"--output is the input, {source}; expected another file")
    with messages.status("Looking for documents"):
        documents = find_documents(source, pattern)
    if task == "ask" and not question and not any(document.questions for document in documents):
        raise InputError('there is no question; expected --question, or "question" or "questions" in the lines')
    fetch_model(model)
    options = RunOptions(
        workers=workers, threads=threads, ray_address=ray, gpus=gpus, timeout=timeout, retry_failed=retry_failed
    )
    try:
        with _show_progress(len(documents)) as progress, redirect_stdout(sys.stderr):  # Ray prints to stdout
            summary = run_batch(documents, output, job, options, log=_log, progress=progress)
    except KeyboardInterrupt:
        messages.print(f"interrupted; the same command continues where it stopped ({output})", markup=False)
        raise
    if as_json:
        typer.echo(json.dumps({"output": str(output), **asdict(summary)}, indent=1))
    else:
        messages.print(_summary_line(summary, output), markup=False, soft_wrap=True)
    if summary.failed:
        raise typer.Exit(1)


def _log(line: str) -> None:
    messages.print(line, style="dim", markup=False, soft_wrap=True)


def _summary_line(summary: Summary, output: Path) -> str:
    line = f"{output}: {summary.done:,} of {summary.documents:,} documents"
    if summary.seconds:
        new = summary.done - summary.done_before
        line += f", {new:,} of them now, in {summary.seconds:,.1f} s ({summary.documents_per_hour:,.0f} an hour"
        line += f", {_workers(summary.workers)}{f', {summary.deaths} replaced' if summary.deaths else ''})"
    if summary.failed:
        line += f"; {summary.failed:,} failed: their rows say why, and --retry-failed processes them again"
    return line


@contextmanager
def _show_progress(documents: int) -> Iterator[Callable[[Status], None]]:
    """A bar with an estimate of the remaining time; without a terminal, a line every 30 seconds."""
    if not messages.is_terminal:
        last_line = time.monotonic()

        def print_line(status: Status) -> None:
            nonlocal last_line
            if time.monotonic() - last_line >= _LOG_INTERVAL:
                last_line = time.monotonic()
                messages.print(_status_line(status), style="dim")

        yield print_line
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.description}"))
    with Progress(*columns, console=messages, transient=True) as bars:
        bar = bars.add_task(f"starting workers for {documents:,} documents", total=1.0)
        yield lambda status: bars.update(bar, completed=status.share, description=_status_line(status))


def _status_line(status: Status) -> str:
    line = f"{status.done:,} of {status.documents:,} documents"
    line += f" · {status.failed:,} failed" if status.failed else ""
    line += f" · {_workers(status.workers)}" if status.workers else " · starting"
    return line if status.left is None else f"{line} · {_duration(status.left)} left"


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
