"""Workers on the machines of a Ray cluster: actors that each hold a model."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import __version__
from ..errors import InputError
from ..utils.optional import require
from .documents import Document
from .job import Job
from .pool import Died, Event, Message, load_worker, to_event

LOCAL = "local"
"""The address that starts a Ray instance for the run, on this machine."""
_CONNECT_TIMEOUT = 10.0  # seconds


class RayPool:
    """Actors of a Ray cluster. Documents are sent with their texts; Ray places the actors, and ends them with the run.

    Parameters
    ----------
    address : of the cluster, "auto", or "local".
    threads : CPUs that each actor reserves.
    gpus : GPUs that each actor reserves; None reserves 1 if the cluster has any.
    """

    def __init__(self, job: Job, address: str, threads: int, gpus: float | None = None) -> None:
        self._ray = require("ray", "ray", "--ray")
        self._job, self._threads = job, threads
        self._connect(address)
        self._resources = self._ray.cluster_resources()
        available = self._resources.get("GPU", 0.0)
        self._gpus = gpus if gpus is not None else min(1.0, available)
        if self._gpus > available:
            raise InputError(f"gpus is {gpus}; the cluster has {available:g}")
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}
        self._started = 0

    @property
    def capacity(self) -> int:
        """Number of workers the cluster has room for."""
        by_cpu = int(self._resources.get("CPU", 1) // self._threads)
        return max(1, by_cpu if not self._gpus else min(by_cpu, int(self._resources["GPU"] // self._gpus)))

    def start(self) -> int:
        """Create an actor on any machine with room."""
        worker = self._started
        self._started += 1
        device = "cuda" if self._gpus and self._job.device is None else self._job.device
        actor_class = self._ray.remote(num_cpus=self._threads, num_gpus=self._gpus, max_restarts=0)(_Actor)
        actor = self._actors[worker] = actor_class.remote()
        self._calls[actor.load.remote(replace(self._job, device=device), self._threads, __version__)] = worker
        return worker

    def submit(self, worker: int, documents: Sequence[Document]) -> None:
        """Send a batch with its texts: the actor's machine may not have the files."""
        documents = [document.with_text() for document in documents]
        self._calls[self._actors[worker].process.remote(documents)] = worker

    def kill(self, worker: int) -> None:
        """Kill an actor, which makes its pending call fail."""
        self._ray.kill(self._actors[worker])

    def events(self, seconds: float) -> list[Event]:
        """Receive the results of finished calls; a call that failed means that the actor died."""
        if not self._calls:
            return []
        finished, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=seconds)
        return [self._receive(call, self._calls.pop(call)) for call in finished]

    def close(self) -> None:
        """Kill all actors and disconnect; a Ray instance that was started for the run ends as well."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._ray.shutdown()

    def _receive(self, call: Any, worker: int) -> Event:
        try:
            message = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self._ray.kill(self._actors.pop(worker))
            return Died(worker, " ".join(str(error).split())[:200])
        return to_event(worker, message)

    def _connect(self, address: str) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors without GPUs keep seeing the devices
        _check_reachable(address)
        target: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {"address": address}
        try:
            self._ray.init(**target, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _connection_error(address, " ".join(str(error).split())[:300]) from None


def _check_reachable(address: str) -> None:
    """Try to connect once, because Ray itself would keep trying for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT).close()
    except (OSError, ValueError) as error:
        raise _connection_error(address, str(error)) from None


def _connection_error(address: str, reason: str) -> InputError:
    return InputError(
        f"no Ray at {address!r} ({reason}); expected an address such as 10.0.0.1:6379, `auto`, or `local`; a cluster "
        "that requires a token also needs RAY_AUTH_MODE=token"
    )


class _Actor:
    """A worker on the cluster. It is created without a model, so that errors while loading can be reported."""

    def load(self, job: Job, threads: int, version: str) -> Message:
        """Load the model, if this machine has the same version of the library."""
        if version != __version__:
            reason = f"the workers have unlimiformer {__version__} and this machine {version}; expected the same"
            return ("error", InputError(reason))
        self.worker, message = load_worker(job, threads)
        return message

    def process(self, documents: list[Document]) -> Message:
        """Process a batch and return its rows."""
        assert self.worker is not None, "the model is loaded"
        return ("done", self.worker.process(documents))
