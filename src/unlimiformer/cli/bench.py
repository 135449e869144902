"""`unlimiformer bench`: measurements that anyone can repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UnlimiformerError
from .console import integers, messages, quiet_libraries, write_json

app = typer.Typer(help="Measure speed and memory.", no_args_is_help=True)


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
) -> None:
    """Time per decoded token, BART-base's shape: ours against other orders of computing it."""
    chosen = integers("--lengths", lengths) or ()
    if not chosen or min(chosen) < 1 or new_tokens < 1 or repeats < 1 or top_k < 1:
        raise UnlimiformerError("lengths, --new-tokens, --repeats and --top-k must be at least 1")
    quiet_libraries()
    from rich.table import Table

    from ..benchmarks import decode as benchmark

    with messages.status("Measuring") as status:
        rows = benchmark.run(chosen, new_tokens, repeats, top_k, say=lambda line: status.update(line))
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
