"""`unlimiformer models` and `unlimiformer texts`: what the catalogue has, and bringing it here."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .console import messages, progress_bar, quiet_libraries

models = typer.Typer(help="Models that ordinary packages carry: list, get, path.", invoke_without_command=True)
texts = typer.Typer(help="Texts that ordinary packages carry: list, get, path.", invoke_without_command=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print an array.")]
Name = Annotated[str, typer.Argument(help="A name from the list.")]


@models.callback()
def list_models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models of the catalogue."""
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
            "download_mb": entry.package.megabytes,
            "from": f"{entry.package.name} {entry.package.version}",
            "here": is_cached(entry.name),
        }
        for entry in MODELS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for row in rows:
        window = f"window {row['window']:,}" if row["window"] else "no window"
        typer.echo(f"{row['name']}  {'(here)' if row['here'] else ''}\n    {row['about']}")
        typer.echo(
            f"    {row['architecture']} · {window} · {row['licence']} · {row['download_mb']} MB from {row['from']}"
        )


@models.command("get")
def get_model(name: Name) -> None:
    """Download and convert a model, once."""
    from .. import hub as catalogue

    quiet_libraries()
    with progress_bar(f"Getting {name}", "bytes") as progress:
        typer.echo(catalogue.get_model(name, messages.print, progress))


@models.command("path")
def model_path(name: Name) -> None:
    """Print the folder of a model that is here."""
    from .. import hub as catalogue

    typer.echo(catalogue.model_path(name))


@texts.callback()
def list_texts(context: typer.Context, as_json: AsJson = False) -> None:
    """List the texts of the catalogue."""
    if context.invoked_subcommand is not None:
        return
    from ..hub import TEXTS

    names = sorted(TEXTS)
    typer.echo(json.dumps(names, indent=1) if as_json else "\n".join(names))


@texts.command("get")
def get_text(name: Name) -> None:
    """Download a text, once."""
    from .. import hub as catalogue

    with progress_bar(f"Getting {name}", "bytes") as progress:
        typer.echo(catalogue.get_text(name, messages.print, progress))


@texts.command("path")
def text_path(name: Name) -> None:
    """Print the file of a text that is here."""
    from .. import hub as catalogue

    typer.echo(catalogue.text_path(name))
