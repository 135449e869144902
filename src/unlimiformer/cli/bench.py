"""`unlimiformer bench`: measurements that anyone can repeat."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from ..utils.optional import require
from ..utils.plotting import pyplot
from .console import messages, progress_bar, quiet_libraries, write_json
from .loading import fetch_model, load_wrapped, make_config, read_texts
from .options import (
    DEFAULT_MODEL,
    SMALL_MODEL,
    AsJson,
    Device,
    Model,
    Repeats,
    Text,
    config_options,
    generation_options,
    integers,
    require_at_least,
)

if TYPE_CHECKING:
    from ..benchmarks.machine import Machine

app = typer.Typer(help="Measure speed, memory and quality.", no_args_is_help=True)

PLAYS = "shakespeare/hamlet,shakespeare/macbeth,shakespeare/othello,shakespeare/lear"
ResultFile = Annotated[Path | None, typer.Option("--output", "-o", help="Write the results to this JSON file.")]
SampleModel = Annotated[str, typer.Option(help="Encoder–decoder that provides real states and queries.")]
Lengths = Annotated[str, typer.Option(help="Source tokens, as 1024,16384.")]


@app.command("decode")
@config_options("top_k")
@generation_options(max_new_tokens=12)
def decode(
    settings: dict[str, Any],
    generation: dict[str, Any],
    lengths: Lengths = "1024,16384,131072",
    sample_model: SampleModel = "flan-t5-small",
    text: Text = "shakespeare/hamlet",
    tokens: Annotated[int, typer.Option(help="Real tokens that are encoded; longer inputs are made of these.")] = 32768,
    repeats: Repeats = 5,
    output: ResultFile = None,
) -> None:
    """Time per generated token for the shape of BART-base, against other orders of computation.

    A plot is written next to the JSON file.
    """
    source_lengths = _lengths(lengths, 1)
    require_at_least(1, repeats=repeats, tokens=tokens)
    if output is not None:
        pyplot("bench")
    from rich.table import Table

    wrapped, memory = _index_text(sample_model, text, tokens)
    from ..benchmarks import decode as benchmark

    machine = _measure_machine()
    with messages.status("Measuring") as status:
        sample = benchmark.Sample.of(wrapped, memory)
        wrapped.remove()
        rows = benchmark.run(
            source_lengths,
            sample,
            new_tokens=generation["max_new_tokens"],
            repeats=repeats,
            top_k=settings.get("top_k", benchmark.WINDOW),
            machine=machine,
            log=status.update,
        )
    columns = ("source tokens", "method", "dtype", "ms per token", "× truncated", "bytes per source token")
    table = Table(*columns, "of memory rate")
    for row in rows:
        numbers = (f"{row.ms_per_token:.1f}", f"{row.ratio_to_truncated:.2f}", f"{row.bytes_per_source_token:,.0f}")
        table.add_row(f"{row.tokens:,}", row.method, row.dtype, *numbers, _share(row.reading_share))
    messages.print(table)
    if output is not None:
        _write(output, benchmark.report(rows, machine=asdict(machine)))
        benchmark.plot(rows, output.with_suffix(".png"))


@app.command("encode")
@config_options("batch_size", "compute_dtype")
def encode(
    settings: dict[str, Any],
    tokens: Annotated[int, typer.Option(help="Source tokens.")] = 8192,
    repeats: Annotated[int, typer.Option(help="Measurements of each method; the median counts.")] = 5,
    output: ResultFile = None,
) -> None:
    """Encoding against bare encoder calls, and the cost of wrapping for a short input."""
    require_at_least(1, tokens=tokens, repeats=repeats)
    quiet_libraries()
    from ..benchmarks import encode as benchmark

    machine = _measure_machine()
    with messages.status("Measuring"):
        figures = benchmark.run(machine, tokens, repeats, **settings)
    for name, value in figures.items():
        messages.print(f"{name.replace('_', ' ')}: {value:,.3f}")
    if output is not None:
        _write(output, {**figures, "machine": asdict(machine)})


@app.command("search")
@config_options("top_k", "recall")
def search(
    settings: dict[str, Any],
    sample_model: SampleModel = "flan-t5-small",
    text: Text = "shakespeare/hamlet",
    tokens: Annotated[int, typer.Option(help="Tokens of the text that are encoded, at most.")] = 1 << 30,
    output: ResultFile = None,
) -> None:
    """Recall, time and size of every store, on real states and queries."""
    from rich.table import Table

    top_k, recall = settings.get("top_k", 512), settings.get("recall", 0.99)
    wrapped, memory = _index_text(sample_model, text, tokens)
    from ..benchmarks import search as benchmark

    machine = _measure_machine()
    with messages.status("Measuring") as status:
        rows = benchmark.run(wrapped, memory, top_k, recall, machine, log=status.update)
    columns = ("store", "dtype", "recall", "mass recall", "ms for 12 queries", "of memory rate", "rows read", "build s")
    table = Table(*columns, "bytes a token", title=f"{sample_model}, {text}: {len(memory):,} tokens, k {top_k}")
    for row in rows:
        quality = (f"{row.recall:.4f}", f"{row.mass_recall:.4f}")
        speed = (f"{row.ms_for_a_dozen_queries:.2f}", _share(row.reading_share))
        cost = (f"{row.looks_at:.1%}", f"{row.build_seconds:.1f}", f"{row.bytes_per_token:,.0f}")
        table.add_row(row.store, row.dtype, *quality, *speed, *cost)
    messages.print(table)
    if output is not None:
        _write(output, benchmark.report(rows, machine=asdict(machine), model=sample_model, text=text, top_k=top_k))


@app.command("needle")
@config_options("top_k", "focus", "selection", "positions")
def needle(
    settings: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    lengths: Lengths = "2000,8000,32000",
    depths: Annotated[int, typer.Option(help="Places in a document; each has a fact of every kind.")] = 10,
    text: Text = PLAYS,
    wordings: Annotated[str, typer.Option(help="Wordings of the facts: reported, or choosing (for tuning).")] = (
        "reported"
    ),
    baselines: Annotated[bool, typer.Option(help="Also ask the truncated model, and with full attention (SLED).")] = (
        True
    ),
    speed: Annotated[bool, typer.Option(help="Also measure RAM and time at the longest length.")] = False,
    device: Device = None,
    output: ResultFile = None,
) -> None:
    """Find one-line facts among similar ones in real text: ours against the truncated model and SLED."""
    source_lengths = _lengths(lengths, 100)
    if wordings not in ("reported", "choosing"):
        raise InputError(f"--wordings is {wordings!r}; expected reported or choosing")
    config = make_config(settings)
    if output is not None:
        pyplot("bench")  # a missing package is reported before any work
    if speed:
        require("psutil", "bench", "measuring memory")
    document = "\n\n".join(read_texts(text))
    wrapped = load_wrapped(model, config, device)
    from rich.table import Table

    from ..benchmarks import needle as benchmark
    from ..qa import QuestionFormat

    causal = wrapped.engine.kind == "decoder-only"
    if speed and not causal:
        raise InputError(f"--speed was given; {model} is an encoder–decoder, which `bench decode` measures")
    rows: list[benchmark.NeedleRow] = []
    figures: dict[str, float] = {}
    about = {"model": model, "wordings": wordings, "depths": depths, "top_k": wrapped.top_k}
    about |= {"focus": wrapped.config.focus, "plain_window": wrapped.engine.context_length}
    if causal:
        about["selection"] = wrapped.engine.selection
    with messages.status("Measuring") as status:
        if speed:
            status.update("Measuring time and RAM")
            figures = benchmark.speed(wrapped, document, max(source_lengths))
        for row in benchmark.run(
            wrapped,
            document,
            source_lengths,
            depths,
            which=wordings,
            baselines=baselines,
            question_format=QuestionFormat.for_model(model),
            log=status.update,
        ):
            rows.append(row)
            if output is not None:  # after every answer, so that an interruption loses nothing
                write_json(output, benchmark.report(rows, speed=figures, **about))
    if output is not None:
        benchmark.plot(rows, output.with_suffix(".png"))
        messages.print(f"wrote {output} and {output.with_suffix('.png')}")
    table = Table("tokens", "method", "right answers")
    for (method, tokens), share in benchmark.accuracy(rows).items():
        table.add_row(f"{tokens:,}", method, f"{share:.1%}")
    messages.print(table)
    for name, value in figures.items():
        messages.print(f"{name.replace('_', ' ')}: {value:,.2f}")


@app.command("answers")
@config_options("top_k", "selection")
def answers(
    files: Annotated[list[Path], typer.Argument(help='JSONL files; a line has "document" and "questions".')],
    settings: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    methods: Annotated[str, typer.Option(help="With commas; every other one is compared with the first.")] = (
        "unlimiformer,bm25,full,truncate"
    ),
    documents: Annotated[int | None, typer.Option(help="Documents of each file, at random; default: all.")] = None,
    questions: Annotated[int, typer.Option(help="Questions of each document, at random.")] = 5,
    one_book: Annotated[
        bool, typer.Option("--one-book", help="Join the documents of a file to one; questions name their title.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random choices.")] = 0,
    device: Device = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the table and all answers.")] = Path(
        "answers"
    ),
    as_json: AsJson = False,
) -> None:
    """Answer real questions with every method: scores, evidence, significance, loops and time.

    Answers are stored one by one; after an interruption the same command continues.
    """
    require_at_least(1, documents=documents, questions=questions)
    quiet_libraries()
    fetch_model(model)
    from ..benchmarks import answers as benchmark

    sample = benchmark.QuestionSample(documents, questions, one_book, seed)
    with progress_bar("Answering", "answers") as progress:
        rows = benchmark.run(
            files, output, model, methods.split(","), sample, settings, device, messages.print, progress
        )
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        _show_answers(rows)
    messages.print(f"wrote {output / benchmark.TABLE} and {output / benchmark.ANSWERS}")


def _show_answers(rows: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("data", "method", "questions", "F1", "ROUGE-1", "ROUGE-L", "evidence", "difference (p)", "loops")
    table = Table(*columns, "reading, s per 1,000 tokens", "s per question")
    for row in rows:
        evidence = "–" if row.evidence is None else f"{row.evidence:.0f} %"
        difference = "–" if row.difference is None else f"{row.difference:+.1f} ({row.p:.3f})"
        reading = "–" if row.read_seconds is None else f"{row.read_seconds:.2f}"
        scores = (f"{score:.1f}" for score in (row.f1, row.rouge1, row.rougeL))
        numbers = (f"{row.questions:,}", *scores, evidence, difference, f"{row.loops:.0f} %", reading)
        table.add_row(row.data, row.method, *numbers, f"{row.answer_seconds:.1f}")
    Console(highlight=False).print(table)


@app.command("summaries")
def summaries(
    files: Annotated[
        list[Path],
        typer.Argument(help='JSONL files; a line has "document" and "summary", or a question for a summary.'),
    ],
    model: Model = DEFAULT_MODEL,
    methods: Annotated[str, typer.Option(help="With commas; every other one is compared with the first.")] = (
        "grounded,hierarchical,truncate,map-reduce,leading"
    ),
    words: Annotated[int, typer.Option(help="Length of every summary.")] = 200,
    documents: Annotated[int | None, typer.Option(help="Documents of each file, the first; default: all.")] = None,
    device: Device = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the table and all summaries.")] = Path(
        "summaries"
    ),
    as_json: AsJson = False,
) -> None:
    """Summarise real documents with every method: ROUGE, entities, supported sentences, loops and time.

    Summaries are stored one by one; after an interruption the same command continues.
    """
    require_at_least(1, words=words, documents=documents)
    quiet_libraries()
    fetch_model(model)
    from ..benchmarks import summaries as benchmark

    with progress_bar("Summarising", "summaries") as progress:
        rows = benchmark.run(
            files, output, model, methods.split(","), words, documents, device, messages.print, progress
        )
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        _show_summaries(rows)
    messages.print(f"wrote {output / benchmark.TABLE} and {output / benchmark.SUMMARIES}")


def _show_summaries(rows: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("data", "method", "documents", "words", "ROUGE-1", "ROUGE-2", "ROUGE-L", "entities", "ROUGE-1 (p)")
    table = Table(*columns, "entities (p)", "supported", "loops", "s per document")
    for row in rows:
        scores = (f"{score:.1f}" for score in (row.rouge1, row.rouge2, row.rougeL, row.entities))
        differences = (
            "–" if difference is None else f"{difference:+.1f} ({p:.3f})"
            for difference, p in ((row.rouge1_difference, row.rouge1_p), (row.entities_difference, row.entities_p))
        )
        supported = "–" if row.supported is None else f"{row.supported:.0f} %"
        numbers = (f"{row.documents:,}", f"{row.words:.0f}", *scores, *differences, supported, f"{row.loops:.0f} %")
        table.add_row(row.data, row.method, *numbers, f"{row.seconds:.1f}")
    Console(highlight=False).print(table)


@app.command("train")
def train(
    tokens: Annotated[int, typer.Option(help="Source tokens of the example.")] = 4096,
    target: Annotated[int, typer.Option(help="Target tokens of the example.")] = 128,
    methods: Annotated[str, typer.Option(help="With commas.")] = "chunked,random,retrieval,alternating,sled,memorizing",
    repeats: Repeats = 2,
    output: ResultFile = None,
) -> None:
    """Step time and peak memory of every training method, for the shape of BART-base."""
    require_at_least(1, tokens=tokens, target=target, repeats=repeats)
    quiet_libraries()
    from rich.table import Table

    from ..benchmarks import training as benchmark
    from ..training.strategies import STRATEGIES

    names = methods.split(",")
    if unknown := [name for name in names if name not in STRATEGIES]:
        raise InputError(f"--methods has {unknown[0]!r}; expected some of: {', '.join(STRATEGIES)}")
    machine = _measure_machine()
    rows: list[benchmark.TrainStepRow] = []
    with messages.status("Measuring") as status:
        for row in benchmark.run(tokens, target, names, repeats, machine, log=status.update):
            rows.append(row)
            if output is not None:
                about = {"machine": asdict(machine), "target": target, "repeats": repeats}
                write_json(output, benchmark.report(rows, **about))
    columns = ("method", "seconds a step", "× standard", "× encoding + decoder step", "GB beyond the model")
    table = Table(*columns, "of product rate")
    for row in rows:
        ratios = ["–" if r is None else f"{r:.2f}" for r in (row.ratio_to_standard, row.ratio_to_parts)]
        seconds = f"{row.seconds:.2f} ± {row.deviation:.2f}"
        table.add_row(row.method, seconds, *ratios, f"{row.peak_bytes / 1e9:.2f}", _share(row.product_share))
    messages.print(table)


@app.command("layers")
def layers(
    tokens: Annotated[int, typer.Option(help="Source tokens.")] = 65536,
    new_tokens: Annotated[int, typer.Option(help="Tokens that are generated.")] = 32,
    output: ResultFile = None,
) -> None:
    """Peak memory by the number of decoder layers that retrieve (the paper's table 8), for the shape of BART-base."""
    require_at_least(1, tokens=tokens, new_tokens=new_tokens)
    quiet_libraries()
    from rich.table import Table

    from ..benchmarks import layers as benchmark

    rows: list[benchmark.LayersRow] = []
    with messages.status("Measuring") as status:
        for row in benchmark.run(tokens, new_tokens, log=status.update):
            rows.append(row)
            if output is not None:
                write_json(output, benchmark.report(rows, new_tokens=new_tokens))
    table = Table("layers that retrieve", "GB beyond the model", "seconds")
    for row in rows:
        table.add_row(str(row.layers), f"{row.peak_bytes / 1e9:.2f}", f"{row.seconds:.1f}")
    messages.print(table)


@app.command("run")
def run(
    model: Model = SMALL_MODEL,
    text: Text = PLAYS,
    documents: Annotated[int, typer.Option(help="Number of documents, cut from the texts.")] = 24,
    tokens: Annotated[int, typer.Option(help="Tokens of the longest; the shortest has an eighth.")] = 4096,
    repeats: Repeats = 3,
    output: ResultFile = None,
) -> None:
    """Documents per hour: a plain loop, and `unlimiformer run` with one worker and with two."""
    require_at_least(1, documents=documents, repeats=repeats)
    require_at_least(8, tokens=tokens)
    quiet_libraries()
    fetch_model(model)
    texts = read_texts(text)
    from rich.table import Table

    from ..benchmarks import batch as benchmark

    with messages.status("Measuring") as status:
        rows = benchmark.run(model, texts, documents, tokens, repeats, log=status.update)
    table = Table("method", "documents per hour", "× the loop", "starting", "waiting")
    for row in rows:
        waiting = "–" if row.waiting is None else f"{row.waiting:.1%}"
        table.add_row(
            row.method, f"{row.documents_per_hour:,.0f}", f"{row.of_loop:.2f}", f"{row.starting_seconds:.1f} s", waiting
        )
    messages.print(table)
    if output is not None:
        about = {"model": model, "documents": documents, "tokens": tokens, "repeats": repeats}
        _write(output, benchmark.report(rows, **about))


def _write(path: Path, content: Any) -> None:
    write_json(path, content)
    messages.print(f"wrote {path}")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _measure_machine() -> Machine:
    """Measure what the machine can do at best, and print it."""
    from ..benchmarks.machine import Machine

    with messages.status("Measuring the machine"):
        machine = Machine.measure()
    messages.print(str(machine))
    return machine


def _lengths(text: str, minimum: int) -> tuple[int, ...]:
    numbers = integers("--lengths", text) or ()
    if not numbers or min(numbers) < minimum:
        raise InputError(f"--lengths is {text!r}; expected numbers of at least {minimum}, as 2000,8000")
    return numbers


def _index_text(model: str, text: str, tokens: int) -> tuple[Any, Any]:
    """A wrapped model and a memory of real float32 states."""
    words = "\n\n".join(read_texts(text))
    wrapped = load_wrapped(model, make_config({"dtype": "float32"}), None)
    ids = wrapped.tokenizer(words, verbose=False)["input_ids"]
    with progress_bar("Indexing") as progress:
        return wrapped, wrapped.index(ids[:tokens], progress=progress)
