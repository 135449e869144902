"""A real server for tests with real clients."""

from __future__ import annotations

import threading
import time

import uvicorn

from unlimiformer.server import BackgroundWorker, DocumentStore, Limits, create_app


class RunningServer:
    """A server in a thread of this process."""

    def __init__(self, wrapped, question_format, folder, **options) -> None:
        self.worker = BackgroundWorker(wrapped, question_format, DocumentStore(folder), Limits(new_tokens=24))
        config = uvicorn.Config(
            create_app(self.worker, "tiny", **options), port=0, log_level="critical", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
