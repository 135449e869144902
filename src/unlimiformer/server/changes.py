"""Tell event streams that something has changed, so that those with nothing to send take no time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Changes:
    """Counts changes, which any thread may report, and wakes the event streams that wait for them."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def notify(self) -> None:
        """Report a change."""
        with self._lock:
            self.count += 1
            waiting = list(self._waiting.items())
        for changed, loop in waiting:
            if not changed.is_set():  # else the stream has yet to look, and will see this change too
                with suppress(RuntimeError):  # the event loop is closed: the server is shutting down
                    loop.call_soon_threadsafe(changed.set)

    @contextmanager
    def watch(self) -> Iterator[asyncio.Event]:
        """An event of the running loop that every change sets."""
        changed = asyncio.Event()
        with self._lock:
            self._waiting[changed] = asyncio.get_running_loop()
        try:
            yield changed
        finally:
            with self._lock:
                del self._waiting[changed]
