"""Run commands in new processes that are forked from one in which the slow libraries are already imported."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from typing import Any

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["torch", "transformers", "unlimiformer.cli.main", "unlimiformer.model"])
_TIMEOUT = 300


def unlimiformer(
    *arguments: str, stdin: bytes | None = None, stdout: str | None = None, **environment: str
) -> subprocess.CompletedProcess:
    """Run a command; its streams and exit code are those of `python -m unlimiformer`.

    `stdout`: the file that it writes to, of which nothing is returned.
    """
    with (
        tempfile.TemporaryFile() as inp,
        open(stdout, "wb") if stdout is not None else tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        inp.write(stdin or b"")
        inp.seek(0)
        streams = [_FORKS.reducer.DupFd(file.fileno()) for file in (inp, out, err)]
        process = _FORKS.Process(
            target=_run_command, args=(arguments, {**os.environ, **environment}, os.getcwd(), streams)
        )
        process.start()
        process.join(_TIMEOUT)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"unlimiformer {' '.join(arguments)} took more than {_TIMEOUT} seconds")
        texts = [file.read() if file.readable() and not file.seek(0) else b"" for file in (out, err)]
    return subprocess.CompletedProcess(["unlimiformer", *arguments], process.exitcode, *texts)


def run(*arguments: str, stdin: bytes | None = None, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
    """Run a command that must end with this exit code."""
    done = unlimiformer(*arguments, stdin=stdin, **environment)
    assert done.returncode == code, done.stderr.decode()
    return done


def error_line(*arguments: str, **options: Any) -> str:
    """Run a command that must be refused; returns its message on one line."""
    return " ".join(run(*arguments, code=2, **options).stderr.decode().split())


def _run_command(arguments: tuple[str, ...], environment: dict[str, str], folder: str, streams: list) -> None:
    for descriptor, stream in enumerate(streams):
        os.dup2(stream.detach(), descriptor)
    sys.stdin = os.fdopen(0)  # multiprocessing has closed the original
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["unlimiformer", *arguments]
    from unlimiformer.cli.main import main

    main()
