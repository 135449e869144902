"""`unlimiformer plan`: what reading a text will take, before any work."""

from __future__ import annotations

import json

import typer

from .console import input_pieces, messages, size
from .options import AsJson, BatchSize, Device, File, Model, Overlap, TopK, Window, load_wrapped, settings


def command(
    file: File,
    model: Model,
    window: Window = None,
    overlap: Overlap = None,
    top_k: TopK = None,
    device: Device = None,
    batch_size: BatchSize = 4,
    as_json: AsJson = False,
) -> None:
    """Tell windows, time and memory before a text is read.

    A few windows of it are encoded, and a few tokens decoded, to know this machine.
    """
    text = input_pieces(file)
    wrapped = load_wrapped(
        model, settings(None, window=window, overlap=overlap, top_k=top_k, batch_size=batch_size), device
    )
    from ..estimate import make_plan

    with messages.status("Calibrating"):
        plan = make_plan(wrapped, text)
    if as_json:
        typer.echo(json.dumps(plan.figures(), indent=1))
        return
    minutes, seconds = divmod(round(plan.encode_seconds), 60)
    typer.echo(f"{plan.tokens:,} tokens in {plan.windows:,} windows: {minutes} min {seconds} s to encode")
    for store in plan.stores:
        typer.echo(
            f"  {store.dtype:<9} {size(store.memory_bytes):>9} of states, {size(store.disk_bytes):>9} on disk, "
            f"{store.ms_per_token:.0f} ms a generated token"
        )
