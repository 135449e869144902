"""`unlimiformer index`: a text of any length into a memory on disk, to be asked for years."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UnlimiformerError
from ..utils.files import folder_size
from ..utils.system import peak_memory
from .console import input_pieces, messages, progress_bar, size
from .options import (
    AsJson,
    BatchSize,
    ComputeDtype,
    Device,
    Model,
    Overlap,
    Prefix,
    Recall,
    Selection,
    StoreOption,
    TopK,
    Window,
    load_wrapped,
    settings,
)


def command(
    file: Annotated[str, typer.Argument(help="A UTF-8 text file, - for standard input, or a memory to read anew.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The memory's folder.")],
    model: Model,
    window: Window = None,
    overlap: Overlap = None,
    prefix: Prefix = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of what is kept: float32, bfloat16 or, of an encoder, int8 (its default).")
    ] = None,
    store: StoreOption = None,
    recall: Recall = 0.99,
    top_k: TopK = None,
    selection: Selection = None,
    device: Device = None,
    compute_dtype: ComputeDtype = None,
    batch_size: BatchSize = 4,
    append: Annotated[bool, typer.Option("--append", help="Put the text behind that of the memory.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a memory of something else.")] = False,
    as_json: AsJson = False,
) -> None:
    """Encode a text into a memory on disk.

    States are written as windows finish. Interrupted, the same command goes on where it stopped; run again for a text
    that has grown, it encodes only what is new.
    """
    from ..memory.memory import Memory
    from ..memory.storage import is_memory

    if append and not is_memory(output):
        raise UnlimiformerError(f"{output} is not a memory to append to; index its first text without --append")
    earlier = Memory.load(output, verify=False) if append else None
    if earlier is not None and earlier.recipe is not None:
        dtype, store = dtype or earlier.recipe.dtype, store or earlier.store.state_dict()[0]["store"]
    config = settings(
        earlier,
        window=window,
        overlap=overlap,
        prefix=prefix,
        dtype=dtype,
        store=store or "exact",
        recall=recall,
        top_k=top_k,
        compute_dtype=compute_dtype,
        batch_size=batch_size,
        selection=selection,
    )
    text = input_pieces(file)
    wrapped = load_wrapped(model, config, device, encoder_dtype="int8")
    started, begun = time.perf_counter(), [0]
    with progress_bar("Encoding") as progress:

        def note(done: int, of: int) -> None:
            begun[0] = begun[0] or done + 1
            progress(done, of)

        try:
            memory = wrapped.index(text, progress=note, folder=output, append=append, overwrite=overwrite)
        except KeyboardInterrupt:
            messages.print(f"interrupted; the same command goes on where it stopped ({output})")
            raise
    figures: dict[str, Any] = {
        "memory": str(output),
        "tokens": len(memory),
        "windows": memory.windows,
        "windows_kept": begun[0] - 1,
        "seconds": time.perf_counter() - started,
        "disk_bytes": folder_size(output),
        "peak_bytes": peak_memory(),
        "search": memory.store.describe(),
    }
    if as_json:
        typer.echo(json.dumps(figures, indent=1))
        return
    kept = f", {figures['windows_kept']:,} of them kept from before" if figures["windows_kept"] else ""
    messages.print(
        f"{output}: {len(memory):,} tokens in {memory.windows:,} windows{kept} · {figures['seconds']:.1f} s · "
        f"{size(figures['disk_bytes'])} on disk, peak memory {size(figures['peak_bytes'])}",
        style="dim",
    )
    messages.print(f"search: {figures['search']}", style="dim")
    if config.store != "exact" and memory.store.state_dict()[0]["store"] == "exact":
        messages.print(
            f"{config.store} was tried and left: the text is short, the recall out of reach, or a scan takes no longer",
            style="dim",
        )
