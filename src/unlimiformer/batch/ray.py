"""Workers on the machines of a Ray cluster: actors, each with a model of its own."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import __version__
from ..errors import UnlimiformerError
from .documents import Document
from .job import Job
from .pool import Died, Done, Event, Ready, opened

LOCAL = "local"
"""The address of a Ray that is started for the run, on this machine."""
_PATIENCE = 10.0  # seconds


class RayPool:
    """Actors of a cluster. Texts travel to them; Ray takes them away with the runner, and finds places for new ones."""

    def __init__(self, work: Job, address: str, threads: int, gpus: float | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise UnlimiformerError("--ray needs the package `ray`; install unlimiformer[ray]") from None
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a worker without GPUs sees what there is
        _check_reachable(address)
        where: dict[str, Any] = {} if address == LOCAL else {"address": address}
        try:
            ray.init(
                **where,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False if not where else None,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise _no_ray(address, reason) from None
        self._ray, self._work, self._threads = ray, work, threads
        self.total = ray.cluster_resources()
        self._gpus = gpus if gpus is not None else min(1.0, self.total.get("GPU", 0.0))
        if self._gpus > self.total.get("GPU", 0.0):
            raise UnlimiformerError(f"gpus is {gpus}; the cluster has {self.total.get('GPU', 0.0):g}")
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}
        self._hired = 0

    @property
    def room(self) -> int:
        """How many workers the cluster has room for."""
        by_cpu = int(self.total.get("CPU", 1) // self._threads)
        return max(1, by_cpu if not self._gpus else min(by_cpu, int(self.total["GPU"] // self._gpus)))

    def start(self) -> int:
        """A new actor, wherever there is room."""
        number = self._hired
        self._hired += 1
        device = "cuda" if self._gpus and self._work.device is None else self._work.device
        kind = self._ray.remote(num_cpus=self._threads, num_gpus=self._gpus, max_restarts=0)(_Actor)
        self._actors[number] = kind.remote()
        self._calls[self._actors[number].open.remote(self._work, device, self._threads, __version__)] = number
        return number

    def give(self, worker: int, documents: Sequence[Document]) -> None:
        """With their texts: the machine may not have the files."""
        carried = [document.with_text() for document in documents]
        self._calls[self._actors[worker].do.remote(carried)] = worker

    def kill(self, worker: int) -> None:
        """Its call will fail."""
        self._ray.kill(self._actors[worker])

    def events(self, seconds: float) -> list[Event]:
        """Answers of the actors, and of those that are gone, that they are."""
        if not self._calls:
            return []
        finished, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=seconds)
        return [self._heard(call, self._calls.pop(call)) for call in finished]

    def _heard(self, call: Any, number: int) -> Event:
        try:
            kind, told = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self._ray.kill(self._actors.pop(number))
            return Died(number, " ".join(str(error).split())[:200])
        if kind == "broken":
            raise UnlimiformerError(told)
        return Ready(number, told) if kind == "ready" else Done(number, told)

    def close(self) -> None:
        """Ends the actors; a Ray that was started for the run ends as well."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, ValueError) as error:
        raise _no_ray(address, str(error)) from None


def _no_ray(address: str, reason: str) -> UnlimiformerError:
    return UnlimiformerError(
        f"no Ray at {address!r} ({reason}); expected an address such as 10.0.0.1:6379, `auto`, or `local`; where "
        "the cluster asks for a token, RAY_AUTH_MODE=token as well"
    )


class _Actor:
    """A worker: at first without a model, so that what is wrong with it can be told."""

    def open(self, work: Job, device: str | None, threads: int, version: str) -> tuple[str, Any]:
        """Loads the model."""
        if version != __version__:
            return (
                "broken",
                f"the workers have unlimiformer {__version__} and the runner {version}; expected the same",
            )
        self.desk, told = opened(replace(work, device=device), threads)
        return told

    def do(self, documents: list[Document]) -> tuple[str, Any]:
        """Their rows."""
        assert self.desk is not None, "it was opened"
        return ("done", self.desk.do(documents))
