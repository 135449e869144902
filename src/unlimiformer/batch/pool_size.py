"""How many workers there are, and where."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UnlimiformerError
from ..hub.loading import weight_bytes
from ..utils.system import cpu_count, free_memory
from .job import Job
from .pool import ProcessPool, WorkerPool

_BESIDE_WEIGHTS = 1 << 30  # bytes of a worker, beside twice its model's files


def create_pool(
    work: Job,
    documents: int,
    workers: int | None,
    address: str | None,
    gpus: float | None,
    threads: int | None,
    log: Callable[[str], None],
) -> tuple[WorkerPool, int]:
    """Workers for so many documents, none of them hired yet, and how many to hire."""
    if workers is not None and workers < 1:
        raise UnlimiformerError(f"workers is {workers}; expected at least 1")
    if address is not None:
        from .ray import RayPool

        actors = RayPool(work, address, threads or 1, gpus)
        wanted = workers or actors.room
        if wanted > actors.room:
            log(f"{wanted} workers were asked for; the cluster has room for {actors.room}")
        return actors, min(documents, wanted)
    count = min(documents, workers or default_workers(work.model, work.device))
    return ProcessPool(work, _devices(work.device), threads or max(1, cpu_count() // count)), count


def default_workers(model: str, device: str | None = None) -> int:
    """One for each GPU; on the CPU, one for each core, while there is room in memory for their models.

    One alone where a single device was named, or all of them are to hold the model together ("auto").
    """
    import torch

    if device == "auto" or (device is not None and ":" in device):
        return 1
    if device != "cpu" and torch.accelerator.is_available():
        return max(1, torch.accelerator.device_count())
    weights, free = weight_bytes(model), free_memory()
    if weights is None or free is None:
        return 1
    return max(1, min(cpu_count(), free // (2 * weights + _BESIDE_WEIGHTS)))


def _devices(device: str | None) -> list[str | None]:
    """Those that workers take in turn: all of a kind, if no number was given."""
    import torch

    if device is None and torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    if device is None or ":" in device or device in ("cpu", "mps", "auto") or not torch.accelerator.is_available():
        return [device]
    return [f"{device}:{number}" for number in range(torch.accelerator.device_count())]
