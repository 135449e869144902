"""Disks that run full: a small file system in RAM where one may be mounted, else a limit of the size of a file."""

import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

_SIZE = 8 << 20


class FullDisk:
    """A folder on a disk that can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_mounted = False

    def __enter__(self) -> "FullDisk":
        self.folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(self.folder)]
        self._is_mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def fill(self, free: int) -> Callable[[], None] | None:
        """Leave so many free bytes; what is returned has to be called in the process that writes."""
        if not self._is_mounted:
            return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (free, free))
        self.empty()
        room = os.statvfs(self.folder)
        with (self.folder / "filling").open("wb") as file:
            file.write(bytes(max(0, room.f_bavail * room.f_frsize - free)))
        return None

    def empty(self) -> None:
        """Give the room back."""
        (self.folder / "filling").unlink(missing_ok=True)
