"""`unlimiformer plan`: estimate time and memory before a text is indexed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import typer

from .console import messages, size
from .loading import iter_input, load_wrapped, make_config
from .options import DEFAULT_MODEL, AsJson, Device, Model, Source, config_options


@config_options("top_k", "window", "overlap", "batch_size")
def command(
    file: Source,
    settings: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Estimate windows, time and memory before a text is indexed.

    A few windows of it are encoded and a few tokens decoded to measure this machine.
    """
    text = iter_input(file)
    wrapped = load_wrapped(model, make_config(settings), device)
    from ..estimate import make_plan

    with messages.status("Measuring"):
        plan = make_plan(wrapped, text)
    if as_json:
        typer.echo(json.dumps(asdict(plan), indent=1))
        return
    minutes, seconds = divmod(round(plan.encode_seconds), 60)
    typer.echo(f"{plan.tokens:,} tokens in {plan.windows:,} windows: {minutes} min {seconds} s to encode")
    for store in plan.stores:
        typer.echo(
            f"  {store.dtype:<9} {size(store.memory_bytes):>9} of states, {size(store.disk_bytes):>9} on disk, "
            f"{store.ms_per_token:.0f} ms per generated token"
        )
