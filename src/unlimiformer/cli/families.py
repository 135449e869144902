"""`unlimiformer families`: list the supported model families."""

from __future__ import annotations

import json

import typer

from .options import AsJson


def command(as_json: AsJson = False) -> None:
    """List the families of models that can be wrapped."""
    from ..adapters import families

    rows = families()
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max(len(row["family"]) for row in rows)
    for row in rows:
        typer.echo(f"{row['family']:<{width}}  {row['kind']:<15}  {row['status']}")
