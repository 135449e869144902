"""`unlimiformer families`: which models are known, told from the registry."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print an array of family, kind and status.")] = False,
) -> None:
    """List the families of models that can be wrapped."""
    from ..adapters import families

    rows = families()
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max(len(row["family"]) for row in rows)
    for row in rows:
        typer.echo(f"{row['family']:<{width}}  {row['kind']:<15}  {row['status']}")
