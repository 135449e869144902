"""Processes that are forked from this one, which has imported the slow libraries and never computes anything itself."""

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_SLOW = (
    "torch",
    "transformers",
    "transformers.models.auto",
    "transformers.generation.candidate_generator",
    "accelerate",
    "tokenizers",
    "transformers.models.t5.modeling_t5",
    "transformers.models.llama.modeling_llama",
    "safetensors.torch",
    "unlimiformer.model",
    "unlimiformer.cli.main",
    "unlimiformer.batch.worker",
    "unlimiformer.batch.runner",
    "unlimiformer.evaluation",
    "unlimiformer.training",
    "unlimiformer.training.seq2seq_trainer",
    "unlimiformer.server",
    "unlimiformer.summaries",
    "uvicorn",
    "fastapi_offline",
    "httpx",
    "filelock",
    "bm25s",
    "rouge_score.rouge_scorer",
    "rich.progress",
    "rich.status",
    "pydantic.type_adapter",
)
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_FAILED = 99  # exit code of a function that raised


def import_slow_libraries() -> None:
    """Import in this process what all forked ones need."""
    for name in _SLOW:
        importlib.import_module(name)


class WarmProcess:
    """A function in a forked process and a process group of its own; its output goes to `<log>.out` and `<log>.err`."""

    def __init__(self, function: Callable[[], object], log: Path) -> None:
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        for path in (self._out, self._err):  # here, so that nobody reads what an earlier process has written
            path.write_bytes(b"")
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function)

    @property
    def out(self) -> str:
        """What it wrote to standard output."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it wrote to standard error."""
        return self._err.read_text(errors="replace")

    def wait(self, seconds: float) -> bool:
        """Wait until it ends, at most this long; return whether it has ended."""
        end = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= end:
                return False
            else:
                time.sleep(0.003)
        return True

    def kill(self) -> None:
        """Kill it as a power cut would, then what it has started."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _run(self, function: Callable[[], object]) -> None:
        code = _FAILED
        try:
            os.setsid()
            if sys.platform == "linux":  # it ends with this process, whatever ends it
                ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
            for descriptor, path in ((0, os.devnull), (1, self._out), (2, self._err)):
                flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY
                os.dup2(os.open(path, flags), descriptor)
            # so that the workers of `run` need not import everything again; a forked worker works like a spawned one
            get_context = multiprocessing.get_context
            multiprocessing.get_context = lambda method=None: get_context("fork" if method == "spawn" else method)
            function()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def command(arguments: list[str], cache: Path, before: Callable[[], None] | None = None) -> Callable[[], object]:
    """`unlimiformer` with these arguments, as a function for a warm process; `before` is called first."""

    def run() -> None:
        if before is not None:
            before()
        from unlimiformer.cli.main import main

        os.environ["UNLIMIFORMER_CACHE"] = str(cache)
        sys.argv = ["unlimiformer", *arguments]
        main()

    return run
