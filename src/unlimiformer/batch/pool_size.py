"""How many workers a run starts, and on which devices."""

from __future__ import annotations

from collections.abc import Callable

from ..hub.loading import weight_bytes
from ..utils.system import cpu_count, free_memory
from .job import Job
from .options import RunOptions
from .pool import ProcessPool, WorkerPool

_WORKER_OVERHEAD = 1 << 30  # bytes a worker needs in addition to twice the size of its model's files


def create_pool(job: Job, documents: int, options: RunOptions, log: Callable[[str], None]) -> tuple[WorkerPool, int]:
    """Create a pool without workers yet, and return it with the number of workers to start."""
    if options.ray_address is not None:
        from .ray import RayPool

        pool = RayPool(job, options.ray_address, options.threads or 1, options.gpus)
        count = options.workers or pool.capacity
        if count > pool.capacity:
            log(f"{count} workers were requested; the cluster has room for {pool.capacity}")
        return pool, min(documents, count)
    count = min(documents, options.workers or default_workers(job.model, job.device))
    threads = options.threads or max(1, cpu_count() // count)
    return ProcessPool(job, _list_devices(job.device), threads), count


def default_workers(model: str, device: str | None = None) -> int:
    """Return one worker per GPU or, on the CPU, one per core as far as memory has room for their models.

    One worker if a single device is named, or if all devices hold one model together ("auto").
    """
    import torch

    if device == "auto" or (device is not None and ":" in device):
        return 1
    if device != "cpu" and torch.accelerator.is_available():
        return max(1, torch.accelerator.device_count())
    weights, free = weight_bytes(model), free_memory()
    if weights is None or free is None:
        return 1
    return max(1, min(cpu_count(), free // (2 * weights + _WORKER_OVERHEAD)))


def _list_devices(device: str | None) -> list[str | None]:
    """List the devices that workers are assigned to in turn: all of a kind, unless one is named."""
    import torch

    if device is None and torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    if device is None or ":" in device or device in ("cpu", "mps", "auto") or not torch.accelerator.is_available():
        return [device]
    return [f"{device}:{index}" for index in range(torch.accelerator.device_count())]
