"""Puts the commands together and turns errors into one line and exit code 2."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..errors import UnlimiformerError
from . import ask, bench, demo, evaluate, families, figures, generate, index, plan, run, serve, train
from . import models as catalogue

app = typer.Typer(
    help="Unlimited-length input for pretrained transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("generate")(generate.command)
app.command("ask")(ask.command)
app.command("index")(index.command)
app.command("run")(run.command)
app.command("plan")(plan.command)
app.command("train")(train.command)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(evaluate.compare)
app.command("tasks")(evaluate.tasks)
app.command("serve")(serve.command)
app.command("demo")(demo.command)
app.command("families")(families.command)
app.add_typer(catalogue.models, name="models")
app.add_typer(catalogue.texts, name="texts")
app.add_typer(figures.app, name="figures")
app.add_typer(bench.app, name="bench")


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False,
) -> None:
    if version:
        from .. import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """The `unlimiformer` command."""
    try:
        app()
    except UnlimiformerError as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
    except MemoryError as error:
        typer.echo(f"error: out of memory: {error}; lower --top-k, --batch-size or use --dtype int8", err=True)
        sys.exit(2)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        typer.echo(f"error: out of memory: {str(error).splitlines()[0]}; lower --top-k or --batch-size", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
