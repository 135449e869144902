"""`unlimiformer bench`: measurements that anyone can repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UnlimiformerError
from .console import integers, messages, progress_bar, quiet_libraries, write_json
from .options import DEFAULT_MODEL, Focus, PositionsOption, Selection, TopK, fetch, load_wrapped, settings

app = typer.Typer(help="Measure speed and memory.", no_args_is_help=True)


NEEDLE_MODEL = "smollm2-135m-instruct"
NEEDLE_TEXTS = "shakespeare/hamlet,shakespeare/macbeth,shakespeare/othello,shakespeare/lear"
RealModel = Annotated[str, typer.Option(help="Whose states and queries: a name from `unlimiformer models`, …")]
RealText = Annotated[str, typer.Option(help="Of which texts: names from `unlimiformer texts` or files, with commas.")]


@app.callback()
def _group() -> None:
    pass


@app.command("decode")
def decode(
    lengths: Annotated[str, typer.Option(help="Source tokens, as 1024,16384.")] = "1024,16384,131072",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here; a PNG beside it.")] = None,
    new_tokens: Annotated[int, typer.Option(help="Tokens decoded in a measurement.")] = 12,
    repeats: Annotated[int, typer.Option(help="Measurements of each method; the best counts.")] = 5,
    top_k: Annotated[int, typer.Option(help="Tokens each head attends to.")] = 1024,
    model: RealModel = "flan-t5-small",
    text: RealText = "shakespeare/hamlet",
    tokens: Annotated[int, typer.Option(help="Real tokens that are encoded; more come from these.")] = 32768,
) -> None:
    """Time per decoded token, BART-base's shape: ours against other orders of computing it."""
    chosen = integers("--lengths", lengths) or ()
    if not chosen or min(chosen) < 1 or new_tokens < 1 or repeats < 1 or top_k < 1:
        raise UnlimiformerError("lengths, --new-tokens, --repeats and --top-k must be at least 1")
    from rich.table import Table

    wrapped, memory = _real_memory(model, text, tokens)
    from ..benchmarks import decode as benchmark

    with messages.status("Measuring") as status:
        sample = benchmark.Sample.of(wrapped, memory)
        wrapped.remove()
        rows = benchmark.run(chosen, sample, new_tokens, repeats, top_k, log=lambda line: status.update(line))
    table = Table("source tokens", "method", "dtype", "ms per token", "× truncated", "bytes per source token")
    for row in rows:
        numbers = (f"{row.ms_per_token:.1f}", f"{row.ratio_to_truncated:.2f}", f"{row.bytes_per_source_token:,.0f}")
        table.add_row(f"{row.tokens:,}", row.method, row.dtype, *numbers)
    messages.print(table)
    if json_file is not None:
        write_json(json_file, benchmark.report(rows))
        benchmark.plot(rows, json_file.with_suffix(".png"))
        messages.print(f"wrote {json_file} and {json_file.with_suffix('.png')}")


@app.command("encode")
def encode(
    tokens: Annotated[int, typer.Option(help="Source tokens.")] = 8192,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
    repeats: Annotated[int, typer.Option(help="Measurements of each method; the median counts.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Windows encoded at once.")] = 4,
    compute_dtype: Annotated[str | None, typer.Option(help="Of ours, if not the model's own: bfloat16.")] = None,
) -> None:
    """Encoding against bare encoder calls, and what a short input costs when wrapped."""
    if tokens < 1 or repeats < 1:
        raise UnlimiformerError("--tokens and --repeats must be at least 1")
    quiet_libraries()
    from ..benchmarks import encode as benchmark

    with messages.status("Measuring"):
        figures = benchmark.run(tokens, repeats, batch_size, compute_dtype)
    for name, value in figures.items():
        messages.print(f"{name.replace('_', ' ')}: {value:,.3f}")
    if json_file is not None:
        write_json(json_file, figures)


@app.command("search")
def search(
    model: RealModel = "flan-t5-small",
    text: RealText = "shakespeare/hamlet",
    tokens: Annotated[int, typer.Option(help="Tokens of the text that are encoded, at most.")] = 1 << 30,
    top_k: Annotated[int, typer.Option(help="Tokens each head attends to.")] = 512,
    recall: Annotated[float, typer.Option(help="Mass recall that a store other than exact must have.")] = 0.99,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
) -> None:
    """Recall, mass recall, time and bytes of every store: real states, real queries."""
    from rich.table import Table

    wrapped, memory = _real_memory(model, text, tokens)
    from ..benchmarks import search as benchmark

    with messages.status("Measuring") as status:
        rows = benchmark.run(wrapped, memory, top_k, recall, log=lambda line: status.update(line))
    columns = ("store", "dtype", "recall", "mass recall", "ms for 12 queries", "looks at", "build s", "bytes a token")
    table = Table(*columns, title=f"{model}, {text}: {len(memory):,} tokens, k {top_k}")
    for row in rows:
        found = (f"{row.recall:.4f}", f"{row.mass_recall:.4f}", f"{row.ms_for_a_dozen_queries:.2f}")
        cost = (f"{row.looks_at:.1%}", f"{row.build_seconds:.1f}", f"{row.bytes_per_token:,.0f}")
        table.add_row(row.store, row.dtype, *found, *cost)
    messages.print(table)
    if json_file is not None:
        write_json(json_file, benchmark.report(rows, model=model, text=text, top_k=top_k))
        messages.print(f"wrote {json_file}")


@app.command("needle")
def needle(
    model: Annotated[str, typer.Option(help="A name from `unlimiformer models`, a folder or a hub id.")] = NEEDLE_MODEL,
    lengths: Annotated[str, typer.Option(help="Tokens of the documents, as 2000,8000.")] = "2000,8000,32000",
    depths: Annotated[int, typer.Option(help="Places in a document; each has a fact of every kind.")] = 10,
    text: RealText = NEEDLE_TEXTS,
    selection: Selection = None,
    positions: PositionsOption = None,
    top_k: TopK = None,
    focus: Focus = None,
    wordings: Annotated[str, typer.Option(help="Of the facts: reported, or choosing (for tuning).")] = "reported",
    plain: Annotated[bool, typer.Option(help="Also ask the truncated plain model, and as SLED.")] = True,
    speed: Annotated[bool, typer.Option(help="Also measure RAM and time at the longest length.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here; a PNG beside it.")] = None,
) -> None:
    """One-line facts among rivals in real text: ours against the truncated plain model, and against SLED."""
    chosen = integers("--lengths", lengths) or ()
    if not chosen or min(chosen) < 100:
        raise UnlimiformerError(f"--lengths is {lengths!r}; expected numbers of at least 100, as 2000,8000")
    if wordings not in ("reported", "choosing"):
        raise UnlimiformerError(f"--wordings is {wordings!r}; expected reported or choosing")
    config = settings(selection=selection, positions=positions, top_k=top_k, focus=focus)
    quiet_libraries()
    words = "\n\n".join(fetch(model, *text.split(",")))
    wrapped = load_wrapped(model, config, None)
    from rich.table import Table

    from ..benchmarks import needle as benchmark
    from ..engines import CausalEngine
    from ..qa import QuestionFormat

    causal = isinstance(wrapped.engine, CausalEngine)
    if speed and not causal:
        raise UnlimiformerError(f"--speed was given; {model} is an encoder–decoder, which `bench decode` measures")
    rows: list[benchmark.NeedleRow] = []
    figures: dict[str, float] = {}

    about = {"model": model, "wordings": wordings, "depths": depths, "top_k": wrapped.top_k}
    about["focus"] = wrapped.config.focus
    about["plain_window"] = wrapped.engine.context_length
    if isinstance(wrapped.engine, CausalEngine):
        about["selection"] = wrapped.engine.selection
    with messages.status("Measuring") as status:
        if speed:
            status.update("Measuring time and RAM")
            figures = benchmark.speed(wrapped, words, max(chosen))
        settled = (wrapped, words, chosen, depths, wordings, plain, QuestionFormat.for_model(model))
        for row in benchmark.run(*settled, log=lambda line: status.update(line)):
            rows.append(row)
            if json_file is not None:  # after every answer, so that an interruption loses nothing
                write_json(json_file, benchmark.report(rows, speed=figures, **about))
    if json_file is not None:
        benchmark.plot(rows, json_file.with_suffix(".png"))
        messages.print(f"wrote {json_file} and {json_file.with_suffix('.png')}")
    table = Table("tokens", "method", "right answers")
    for (method, tokens), share in benchmark.accuracy(rows).items():
        table.add_row(f"{tokens:,}", method, f"{share:.1%}")
    messages.print(table)
    for name, value in figures.items():
        messages.print(f"{name.replace('_', ' ')}: {value:,.2f}")


@app.command("train")
def train(
    tokens: Annotated[int, typer.Option(help="Source tokens of the example.")] = 4096,
    target: Annotated[int, typer.Option(help="Target tokens of the example.")] = 128,
    methods: Annotated[str, typer.Option(help="With commas.")] = "chunked,random,retrieval,alternating,sled,memorizing",
    repeats: Annotated[int, typer.Option(help="Steps of each method; the best counts.")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
) -> None:
    """Step time and peak memory of every training method, BART-base's shape."""
    if tokens < 1 or target < 1 or repeats < 1:
        raise UnlimiformerError("--tokens, --target and --repeats must be at least 1")
    quiet_libraries()
    from rich.table import Table

    from ..benchmarks import training as benchmark
    from ..training.strategies import STRATEGIES

    chosen = methods.split(",")
    if unknown := [method for method in chosen if method not in STRATEGIES]:
        raise UnlimiformerError(f"--methods has {unknown[0]!r}; expected some of: {', '.join(STRATEGIES)}")
    rows: list[benchmark.TrainStepRow] = []
    with messages.status("Measuring") as status:
        for row in benchmark.run(tokens, target, chosen, repeats, log=lambda line: status.update(line)):
            rows.append(row)
            if json_file is not None:
                write_json(json_file, benchmark.report(rows, target=target, repeats=repeats))
    table = Table("method", "seconds a step", "× standard", "× encoding + decoder step", "GB beyond the model")
    for row in rows:
        ratios = ["–" if r is None else f"{r:.2f}" for r in (row.ratio_to_standard, row.ratio_to_parts)]
        table.add_row(row.method, f"{row.seconds:.2f}", *ratios, f"{row.peak_bytes / 1e9:.2f}")
    messages.print(table)


@app.command("run")
def run(
    model: RealModel = DEFAULT_MODEL,
    text: RealText = NEEDLE_TEXTS,
    documents: Annotated[int, typer.Option(help="How many; cut from the texts.")] = 24,
    tokens: Annotated[int, typer.Option(help="Of the longest; the shortest has an eighth.")] = 4096,
    repeats: Annotated[int, typer.Option(help="Measurements of each method; the best counts.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
) -> None:
    """Documents an hour: a plain loop, and `run` with one worker and with two."""
    if documents < 1 or tokens < 8 or repeats < 1:
        raise UnlimiformerError("--documents and --repeats must be at least 1, --tokens at least 8")
    quiet_libraries()
    words = fetch(model, *text.split(","))
    from rich.table import Table

    from ..benchmarks import batch as benchmark

    with messages.status("Measuring") as status:
        rows = benchmark.run(model, words, documents, tokens, repeats, log=lambda line: status.update(line))
    table = Table("method", "documents an hour", "× the loop", "starting", "waiting")
    for row in rows:
        waiting = "–" if row.waiting is None else f"{row.waiting:.1%}"
        table.add_row(
            row.method, f"{row.documents_per_hour:,.0f}", f"{row.of_loop:.2f}", f"{row.starting_seconds:.1f} s", waiting
        )
    messages.print(table)
    if json_file is not None:
        about = {"model": model, "documents": documents, "tokens": tokens, "repeats": repeats}
        write_json(json_file, benchmark.report(rows, **about))
        messages.print(f"wrote {json_file}")


def _real_memory(model: str, text: str, tokens: int) -> tuple[Any, Any]:
    """A wrapped model and a memory of real float32 states."""
    quiet_libraries()
    words = "\n\n".join(fetch(model, *text.split(",")))
    from ..model import Unlimiformer

    wrapped = Unlimiformer.from_pretrained(model, dtype="float32")
    ids = wrapped.tokenizer(words, verbose=False)["input_ids"]
    with progress_bar("Encoding") as progress:
        return wrapped, wrapped.index(ids[:tokens], progress=progress)
