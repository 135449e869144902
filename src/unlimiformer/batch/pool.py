"""Pools of workers that each hold a model: the protocol the scheduler relies on, and processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import UnlimiformerError
from ..utils.quiet import quiet_libraries
from .documents import Document
from .job import Job, ResultRow

if TYPE_CHECKING:
    from .worker import Worker


@dataclass(frozen=True)
class Ready:
    """A worker has loaded its model; `info` has the model's digest, the device and the process id."""

    worker: int
    info: dict[str, Any]


@dataclass(frozen=True)
class Done:
    """A worker has processed its batch; there is one row per document, in order."""

    worker: int
    rows: list[ResultRow]


@dataclass(frozen=True)
class Died:
    """A worker has ended; its batch, if it had one, is lost."""

    worker: int
    reason: str


Event = Ready | Done | Died
Message = tuple[str, Any]
"""What a worker sends: ("ready", info), ("done", rows), or ("error", exception) if it cannot load its model."""


class WorkerPool(Protocol):
    """Workers, known by their numbers. If one cannot load its model, `events` raises the error."""

    def start(self) -> int:
        """Start another worker and return its number; it will be ready or die."""

    def submit(self, worker: int, documents: Sequence[Document]) -> None:
        """Give a batch to a worker that is ready and idle."""

    def kill(self, worker: int) -> None:
        """Kill a worker; `events` will report its death."""

    def events(self, seconds: float) -> list[Event]:
        """Return what happened, waiting up to `seconds` for the first event."""

    def close(self) -> None:
        """End all workers immediately."""


class ProcessPool:
    """Worker processes on this machine. They end with the process that started them, also if it is killed.

    Parameters
    ----------
    devices : devices that new workers are assigned to in turn.
    threads : CPU threads of each worker.
    """

    def __init__(self, job: Job, devices: Sequence[str | None], threads: int) -> None:
        self._job, self._devices, self._threads = job, devices, threads
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[int, tuple[Any, Connection]] = {}
        self._started = 0

    def start(self) -> int:
        """Start a process on the next device."""
        worker = self._started
        self._started += 1
        connection, worker_connection = self._context.Pipe()
        device = self._devices[worker % len(self._devices)]
        process = self._context.Process(
            target=_serve,
            args=(worker_connection, replace(self._job, device=device), self._threads),
            name=f"worker {worker}",
            daemon=True,
        )
        with _ignore_interrupts():
            process.start()
        worker_connection.close()
        self._workers[worker] = (process, connection)
        return worker

    def submit(self, worker: int, documents: Sequence[Document]) -> None:
        """Send a batch to a worker; if it is dead, `events` reports that."""
        with suppress(OSError):
            self._workers[worker][1].send(list(documents))

    def kill(self, worker: int) -> None:
        """Kill a process, which also closes its pipe."""
        self._workers[worker][0].kill()

    def events(self, seconds: float) -> list[Event]:
        """Receive from all pipes; a closed pipe means that the worker died."""
        workers = {connection: worker for worker, (_, connection) in self._workers.items()}
        ready = wait(list(workers), seconds)
        return [self._receive(workers[connection]) for connection in ready]  # type: ignore[index]

    def close(self) -> None:
        """Kill all processes; only their unfinished batches are lost."""
        for process, connection in self._workers.values():
            process.kill()
            connection.close()
        for process, _ in self._workers.values():
            process.join()
        self._workers = {}

    def _receive(self, worker: int) -> Event:
        process, connection = self._workers[worker]
        try:
            message = connection.recv()
        except (EOFError, OSError):
            process.join()
            connection.close()
            del self._workers[worker]
            return Died(worker, _describe_exit(process.exitcode))
        return to_event(worker, message)


def to_event(worker: int, message: Message) -> Event:
    """Convert a worker's message to an event, or raise the error that it reports."""
    kind, content = message
    if kind == "error":
        raise content
    return Ready(worker, content) if kind == "ready" else Done(worker, content)


def load_worker(job: Job, threads: int) -> tuple[Worker | None, Message]:
    """Load a model in this process. Return the worker, or None on an error, and the message for the pool."""
    quiet_libraries()
    from .worker import Worker, describe_error

    try:
        worker = Worker(job, threads)
    except Exception as error:
        kind = type(error) if isinstance(error, UnlimiformerError) else UnlimiformerError
        return None, ("error", kind(describe_error(error)))
    return worker, ("ready", {**worker.info, "pid": os.getpid()})


def _serve(connection: Connection, job: Job, threads: int) -> None:
    """Run a worker process: load the model, then process batches until the pipe is closed."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    worker, message = load_worker(job, threads)
    connection.send(message)
    while worker is not None:
        try:
            connection.send(("done", worker.process(connection.recv())))
        except (EOFError, OSError):
            return


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Make processes that are started meanwhile ignore Ctrl-C: the scheduler decides when they end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _exit_with_parent() -> None:
    """Exit when the parent process ends; otherwise the workers of a killed run would keep their memory and GPU."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"{name}{' (out of memory?)' if -code == signal.SIGKILL else ''}"
    return f"exit code {code}"
