"""A real server for tests with real clients."""

from __future__ import annotations

import threading
import time

import uvicorn

from unlimiformer.server import BackgroundWorker, DocumentStore, Limits, create_app
from unlimiformer.server.connections import make_server_config


class RunningServer:
    """A server in a thread of this process."""

    def __init__(self, wrapped, question_format, folder, connections=512, timeouts=None, **options) -> None:
        limits = Limits(new_tokens=24, connections=connections)
        self.worker = BackgroundWorker(wrapped, question_format, DocumentStore(folder), limits)
        app = create_app(self.worker, "tiny", **options)
        config = make_server_config(app, connections, port=0, timeout_graceful_shutdown=1)
        for name, seconds in (timeouts or {}).items():
            setattr(config.http, name, seconds)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def connections(self) -> int:
        """Number of open connections."""
        return len(self._server.server_state.connections)
