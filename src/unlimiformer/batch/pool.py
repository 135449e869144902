"""Workers, each with a model of its own: what a run needs of them, and worker processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from ..errors import UnlimiformerError
from ..hub.loading import quiet_libraries
from .documents import Document
from .job import Job, ResultRow


@dataclass(frozen=True)
class Ready:
    """A worker has its model; `about` says which and where."""

    worker: int
    about: dict[str, Any]


@dataclass(frozen=True)
class Done:
    """A worker has done what it was given."""

    worker: int
    rows: list[ResultRow]


@dataclass(frozen=True)
class Died:
    """A worker is gone, and with it what it was at."""

    worker: int
    reason: str


Event = Ready | Done | Died


class WorkerPool(Protocol):
    """Workers by number. One that cannot load its model raises what is wrong out of `events`."""

    def start(self) -> int:
        """Starts a worker more; it will be ready or die."""

    def give(self, worker: int, documents: Sequence[Document]) -> None:
        """To one that is ready and has nothing to do."""

    def kill(self, worker: int) -> None:
        """Ends one; `events` will tell."""

    def events(self, seconds: float) -> list[Event]:
        """What happened; waits for at most so long until something does."""

    def close(self) -> None:
        """Ends all workers at once."""


class ProcessPool:
    """Processes on this machine. A runner that is killed takes them with it."""

    def __init__(self, work: Job, devices: Sequence[str | None], threads: int) -> None:
        self._work, self._devices, self._threads = work, devices, threads
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[int, tuple[Any, Connection]] = {}
        self._hired = 0

    def start(self) -> int:
        """A new process, on the device whose turn it is."""
        number = self._hired
        self._hired += 1
        ours, theirs = self._context.Pipe()
        device = self._devices[number % len(self._devices)]
        process = self._context.Process(
            target=_serve, args=(theirs, self._work, device, self._threads), name=f"worker {number}", daemon=True
        )
        with _deaf_to_interrupts():
            process.start()
        theirs.close()
        self._workers[number] = (process, ours)
        return number

    def give(self, worker: int, documents: Sequence[Document]) -> None:
        """Through its pipe; of one that is gone, `events` will tell."""
        with suppress(OSError):
            self._workers[worker][1].send(list(documents))

    def kill(self, worker: int) -> None:
        """Its pipe ends with it."""
        self._workers[worker][0].kill()

    def events(self, seconds: float) -> list[Event]:
        """What came through the pipes; a pipe that ends is a death."""
        numbers = {connection: number for number, (_, connection) in self._workers.items()}
        return [self._heard(numbers[connection]) for connection in wait(list(numbers), seconds)]  # type: ignore[index]

    def _heard(self, number: int) -> Event:
        process, connection = self._workers[number]
        try:
            kind, told = connection.recv()
        except (EOFError, OSError):
            process.join()
            connection.close()
            del self._workers[number]
            return Died(number, _ended(process.exitcode))
        if kind == "broken":
            raise UnlimiformerError(told)
        return Ready(number, told) if kind == "ready" else Done(number, told)

    def close(self) -> None:
        """Nothing is lost but what they were at."""
        for process, connection in self._workers.values():
            process.kill()
            connection.close()
        for process, _ in self._workers.values():
            process.join()
        self._workers = {}


def opened(work: Job, threads: int) -> tuple[Any, tuple[str, Any]]:
    """A desk, or none; and what to tell the runner."""
    quiet_libraries()
    from .worker import Worker, explanation

    try:
        desk = Worker(work, threads)
    except Exception as error:
        return None, ("broken", explanation(error))
    return desk, ("ready", {**desk.about, "pid": os.getpid()})


def _serve(connection: Connection, work: Job, device: str | None, threads: int) -> None:
    """The life of a worker process."""
    threading.Thread(target=_leave_with_the_runner, daemon=True).start()
    desk, told = opened(replace(work, device=device), threads)
    connection.send(told)
    while desk is not None:
        try:
            connection.send(("done", desk.do(connection.recv())))
        except (EOFError, OSError):
            return


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What is started meanwhile does not hear Ctrl-C: the runner decides."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave_with_the_runner() -> None:
    """Else the worker of a killed runner would go on, and hold what the next run needs."""
    runner = multiprocessing.parent_process()
    assert runner is not None
    wait([runner.sentinel])
    os._exit(1)


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"{name}{' (out of memory?)' if -code == signal.SIGKILL else ''}"
    return f"exit code {code}"
