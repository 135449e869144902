"""The command `unlimiformer`: puts the commands together and turns errors into one line and exit code 2."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from .. import __version__
from ..errors import UnlimiformerError
from . import (
    ask,
    bench,
    chat,
    demo,
    evaluate,
    families,
    figures,
    generate,
    index,
    mcp,
    models,
    plan,
    run,
    serve,
    summarize,
    train,
)

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

app = typer.Typer(
    help="Unlimited-length input for pretrained transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("ask")(ask.command)
app.command("chat")(chat.command)
app.command("summarize")(summarize.command)
app.command("generate")(generate.command)
app.command("index")(index.command)
app.command("run")(run.command)
app.command("plan")(plan.command)
app.command("serve")(serve.command)
app.command("mcp")(mcp.command)
app.command("demo")(demo.command)
app.command("train")(train.command)
app.command("recipes")(train.recipes)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(evaluate.compare)
app.command("tasks")(evaluate.tasks)
app.command("families")(families.command)
app.add_typer(models.models, name="models")
app.add_typer(models.texts, name="texts")
app.add_typer(figures.app, name="figures")
app.add_typer(bench.app, name="bench")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    try:
        try:
            app()
        except SystemExit:  # the end of every command
            if sys.stdout is not None:
                sys.stdout.flush()
            raise
    except UnlimiformerError as error:
        _fail(" ".join(str(error).split()))
    except MemoryError as error:
        _fail(f"out of memory: {error}; lower --top-k, --batch-size or use --dtype int8")
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        _fail(f"out of memory: {str(error).splitlines()[0]}; lower --top-k or --batch-size")
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if error.filename is not None or error.errno not in _WRITE_ERRORS:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be written is not tried again at the exit
        _fail(f"cannot write the output ({error.strerror}); free some space, or write to another place")


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)
