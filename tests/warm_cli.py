"""Commands as processes of their own, forked from one that has imported the slow libraries once."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["torch", "transformers", "unlimiformer.cli.main", "unlimiformer.model"])
_TIMEOUT = 300


def unlimiformer(*arguments: str, stdin: bytes | None = None, **environment: str) -> subprocess.CompletedProcess:
    """Runs a command; its streams and exit code are those of `python -m unlimiformer`."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin or b"")
        given.seek(0)
        streams = [_FORKS.reducer.DupFd(file.fileno()) for file in (given, out, err)]
        process = _FORKS.Process(target=_command, args=(arguments, {**os.environ, **environment}, os.getcwd(), streams))
        process.start()
        process.join(_TIMEOUT)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"unlimiformer {' '.join(arguments)} took more than {_TIMEOUT} seconds")
        texts = [file.read() for file in (out, err) if not file.seek(0)]
    return subprocess.CompletedProcess(["unlimiformer", *arguments], process.exitcode, *texts)


def _command(arguments: tuple[str, ...], environment: dict[str, str], folder: str, streams: list) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.detach(), number)
    sys.stdin = os.fdopen(0)  # multiprocessing has closed its own
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["unlimiformer", *arguments]
    from unlimiformer.cli.main import main

    main()
