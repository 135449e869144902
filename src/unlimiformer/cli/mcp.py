"""`unlimiformer mcp`: tools for assistants that speak the Model Context Protocol, over standard input and output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..utils.optional import require
from .console import quiet_libraries
from .loading import load_wrapped, make_config
from .options import DEFAULT_MODEL, Device, Model, config_options
from .serve import lock_folder


@config_options("top_k", "focus", "window", "overlap", "selection", "dtype", "compute_dtype", "store", "batch_size")
def command(
    settings: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    folder: Annotated[Path | None, typer.Option(help="Folder for the documents; default: in the user's cache.")] = None,
    device: Device = None,
) -> None:
    """Serve tools over standard input and output: index, list, ask, summarise and quote documents.

    Configure it in an assistant as the command `unlimiformer mcp`. Standard output has nothing but the protocol.
    """
    config = make_config(settings)
    quiet_libraries()
    require("mcp", "mcp", "the Model Context Protocol")
    from ..qa import QuestionFormat
    from ..server import BackgroundWorker, DocumentStore, Limits, create_mcp_server
    from ..utils.files import cache_folder

    wrapped = load_wrapped(model, config, device)
    folder = folder or cache_folder() / "mcp"
    with lock_folder(folder):
        limits = Limits(new_tokens=1024)
        worker = BackgroundWorker(wrapped, QuestionFormat.for_model(model), DocumentStore(folder), limits)
        try:
            create_mcp_server(worker).run("stdio")
        finally:
            worker.close()
