"""`unlimiformer index`: encode a text into a memory on disk."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..utils.files import folder_size
from ..utils.system import peak_memory
from .console import messages, progress_bar, size
from .loading import load_wrapped, make_config, open_document
from .options import DEFAULT_MODEL, AsJson, Device, Model, Source, config_options


@config_options(
    *("top_k", "window", "overlap", "prefix", "selection", "dtype", "compute_dtype", "store", "recall", "batch_size")
)
def command(
    file: Source,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the memory.")],
    settings: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    device: Device = None,
    append: Annotated[bool, typer.Option("--append", help="Append the text to the memory.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a memory of another text or setting.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Encode a text into a memory on disk. The states of an encoder are stored as int8 unless --dtype says otherwise.

    States are written as windows finish. If it is interrupted, the same command continues where it stopped; for a text
    that has grown, it encodes only what is new.
    """
    from ..memory import Memory
    from ..memory.description import is_memory

    if append and not is_memory(output):
        raise InputError(f"{output} is not a memory to append to; index its first text without --append")
    earlier = Memory.load(output, verify=False) if append else None
    if earlier is not None and earlier.spec is not None:
        settings = {"dtype": earlier.spec.dtype, "store": earlier.store.state_dict()[0]["store"], **settings}
    config = make_config({"store": "auto", "compute_dtype": "auto", **settings}, earlier)
    text = open_document(file)
    wrapped = load_wrapped(model, config, device, encoder_dtype="int8")
    started = time.perf_counter()
    first_done: list[int] = []
    with progress_bar("Indexing") as progress:

        def show(done: int, total: int) -> None:
            first_done.append(done)
            progress(done, total)

        try:
            memory = wrapped.index(text, progress=show, folder=output, append=append, overwrite=overwrite)
        except KeyboardInterrupt:
            messages.print(f"interrupted; the same command continues where it stopped ({output})")
            raise
    figures: dict[str, Any] = {
        "memory": str(output),
        "tokens": len(memory),
        "windows": memory.windows,
        "windows_kept": first_done[0] if first_done else 0,
        "seconds": time.perf_counter() - started,
        "disk_bytes": folder_size(output),
        "peak_bytes": peak_memory(),
        "search": memory.store.describe(),
    }
    if as_json:
        typer.echo(json.dumps(figures, indent=1))
        return
    reused = f", {figures['windows_kept']:,} of them reused" if figures["windows_kept"] else ""
    messages.print(
        f"{output}: {len(memory):,} tokens in {memory.windows:,} windows{reused} · {figures['seconds']:.1f} s · "
        f"{size(figures['disk_bytes'])} on disk, peak memory {size(figures['peak_bytes'])}",
        style="dim",
    )
    messages.print(f"search: {figures['search']}", style="dim")
    if config.store not in ("exact", "auto") and memory.store.state_dict()[0]["store"] == "exact":
        messages.print(
            f"exact search is used instead of {config.store}: it is not faster, or its recall is too low",
            style="dim",
        )
