"""Run foreign code that could take for ever or all memory, in a copy of this process that ends at its bounds.

On Linux the copy is made by `fork`, which is cheap, and safe for code that only computes. On other systems, and where
no copy can be made, the function runs in this process, without bounds.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_CPU_SECONDS = 2
_SECONDS = 60  # on a busy machine the same work takes longer
_MEMORY = 512 << 20  # more than this process has
_OUTPUT = 16 << 20
_BLOCK = 1 << 16


class BoundedError(Exception):
    """The function raised an error, or reached a bound; the message says which."""


def call_bounded(function: Callable[[], str]) -> str:
    """Return what the function returns, or raise `BoundedError`; what else it changes is lost."""
    process = receiver = None
    if sys.platform == "linux":
        receiver, sender = os.pipe()
        process = _fork()
        if process == 0:
            _compute(function, sender)
        os.close(sender)
    try:
        if process is None:
            return _call(function)
        assert receiver is not None
        return _receive(receiver)
    finally:
        if receiver is not None:
            os.close(receiver)
        if process is not None:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _fork() -> int | None:
    """The id of the copy, 0 inside it, or None if there is no memory for one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads hold no lock that the function needs
        try:
            return os.fork()
        except OSError:
            return None


def _call(function: Callable[[], str]) -> str:
    try:
        return function()
    except Exception as error:
        raise BoundedError(f"{type(error).__name__}: {error}") from None


def _compute(function: Callable[[], str], sender: int) -> NoReturn:
    """Run in the copy: call the function and send what it returns or raises, as JSON."""
    try:
        _set_limits()
        try:
            content = json.dumps({"result": function()})
        except BaseException as error:
            content = json.dumps({"error": f"{type(error).__name__}: {str(error)[:1000]}"})
        with os.fdopen(sender, "w") as pipe:
            pipe.write(content)
    finally:
        os._exit(0)


def _set_limits() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS + 1))
    with open("/proc/self/statm") as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = own + _MEMORY if hard == resource.RLIM_INFINITY else min(own + _MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _receive(receiver: int) -> str:
    """What the copy sends, as soon as it has ended."""
    content, deadline = bytearray(), time.monotonic() + _SECONDS
    while select.select([receiver], [], [], max(0.0, deadline - time.monotonic()))[0]:
        block = os.read(receiver, _BLOCK)
        if not block:
            break
        content += block
        if len(content) > _OUTPUT:
            raise BoundedError(f"it gives more than {_OUTPUT >> 20} MB")
    try:
        answer = json.loads(content)
    except ValueError:  # ended by a limit before it could answer
        raise BoundedError(f"it needs more than {_CPU_SECONDS} seconds or {_MEMORY >> 20} MB") from None
    if "error" in answer:
        raise BoundedError(answer["error"])
    return answer["result"]
