"""Writes docs/command_line.md: every command with its arguments and options, as `--help` has them.

Run `python bench/cli_reference.py` after a command has changed; a test compares the page with the commands. The page is
made from the declarations and not from the text of `--help`, whose layout depends on the version of typer and on the
width of the terminal.
"""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import typer
from typer.models import ArgumentInfo

from unlimiformer.cli.main import app

PAGE = Path(__file__).parent.parent / "docs" / "command_line.md"
VALUES = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}
INTRODUCTION = """# Command line

All commands and their options. `unlimiformer COMMAND --help` shows the same. This page is written by
`python bench/cli_reference.py`.

- A **FILE** is a document (PDF, EPUB, DOCX, HTML, subtitles, text), `-` for standard input, a memory (folder or URL),
  or a name from `unlimiformer texts`.
- A **model** is a hub id, a folder, or a name from `unlimiformer models`. A model or text from these lists is
  downloaded if it is missing.
- Results go to standard output, messages and progress to standard error. `--json` prints the result as JSON. The
  commands of `bench` write it to a file with `-o`.
- `index`, `run`, `train`, `evaluate` and `figures quality` can be interrupted; the same command continues where it
  stopped.
- An error is one line on standard error and exit code 2; Ctrl-C is exit code 130.
- An option that is not given has the model's default: from its `unlimiformer.json` if it has one, or of its family.
"""


def render() -> str:
    """Return the whole page."""
    return INTRODUCTION + "".join(_sections(app, "unlimiformer"))


def _sections(group: typer.Typer, name: str) -> Iterator[str]:
    """Yield a section for each command of a group, and for each group inside it."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield _section(command.callback, f"{name} {command.name}", inspect.getdoc(command.callback))
    for child in group.registered_groups:
        assert child.typer_instance is not None
        child_name = f"{name} {child.name}"
        callback = child.typer_instance.registered_callback
        function = None if callback is None else callback.callback
        yield _section(function or (lambda: None), f"{child_name} [COMMAND]", child.typer_instance.info.help)
        yield from _sections(child.typer_instance, child_name)


def _section(command: Callable, name: str, text: str | None) -> str:
    parameters = [
        (parameter, *get_args(parameter.annotation))
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if get_origin(parameter.annotation) is not None  # not the context that typer passes
    ]
    arguments = [(_argument(*row), row[2].help) for row in parameters if isinstance(row[2], ArgumentInfo)]
    options = [_option(*row) for row in parameters if not isinstance(row[2], ArgumentInfo)]
    usage = " ".join((name, *(argument for argument, _ in arguments), *(["[OPTIONS]"] if options else [])))
    title = name.removesuffix(" [COMMAND]")
    parts = [f"{'##' if title.count(' ') == 1 else '###'} {title}", f"`{usage}`"]
    parts += [" ".join(part.split()) for part in (text or "").split("\n\n")]
    if arguments:
        parts.append("\n".join(f"- `{argument}`: {help_text}" for argument, help_text in arguments))
    if options:
        parts.append("\n".join(("| option | default | |", "|---|---|---|", *options)))
    return "\n" + "\n\n".join(parts) + "\n"


def _argument(parameter: inspect.Parameter, kind: Any, info: Any) -> str:
    name = info.metavar or parameter.name.upper()
    return f"{name}…" if get_origin(kind) is list else name


def _option(parameter: inspect.Parameter, kind: Any, info: Any) -> str:
    """Return the row of one option: its names and value, its default, and its description."""
    kinds = [part for part in (get_args(kind) or (kind,)) if part is not NoneType]
    kind = get_args(kinds[0])[0] if get_origin(kinds[0]) is list else kinds[0]
    # inside Annotated, the first argument of typer.Option is a name of the option, although it is called `default`
    declared = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str) and name[:1] == "-"]
    name = parameter.name.replace("_", "-")
    names = ", ".join(sorted(declared, key=len)) or (f"--{name} / --no-{name}" if kind is bool else f"--{name}")
    value = "" if kind is bool else f" {info.metavar or VALUES[kind]}"
    return f"| `{names}{value}` | {_default(parameter.default)} | {_cell(info.help or '')} |"


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or value is False:
        return ""
    return "on" if value is True else f"`{_cell(str(value))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
