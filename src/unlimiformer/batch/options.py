"""Workers, timeout and retries of a batch run. These options never change the results."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError


@dataclass(frozen=True)
class RunOptions:
    """Options of `run`.

    Parameters
    ----------
    workers : number of worker processes, or of actors with `ray_address`; None starts as many as there is room for.
    threads : CPU threads of each worker; None shares the cores among the workers.
    ray_address : address of a Ray cluster, "auto", or "local"; None uses processes on this machine.
    gpus : GPUs of each worker on a Ray cluster; None gives 1 if the cluster has any.
    timeout : seconds a document may take before its worker is killed and the document counts as failed.
    retry_failed : process again the documents that failed in an earlier run.
    """

    workers: int | None = None
    threads: int | None = None
    ray_address: str | None = None
    gpus: float | None = None
    timeout: float | None = None
    retry_failed: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers is {self.workers}; expected at least 1")
        if self.timeout is not None and self.timeout <= 0:
            raise InputError(f"timeout is {self.timeout}; expected more than 0")
