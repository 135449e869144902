"""Connections to the server: how many there may be, and how long a client may keep one without using it."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEADER_SECONDS = 10.0  # for the first line and the headers of a request
_IDLE_SECONDS = 60.0  # between two parts of a body, and for a client that does not take what it is sent
_SHUTDOWN_SECONDS = 2  # for answers that are being sent
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n"


class BoundedConnection(H11Protocol):
    """A connection that is closed when the client is silent where it should send or take something.

    A client that waits for an answer or for events may be silent for any time.
    """

    most = 512
    header_seconds, idle_seconds = _HEADER_SECONDS, _IDLE_SECONDS
    _timer: asyncio.TimerHandle | None = None
    _waits_for_headers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, or refuse one connection too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.write(_TOO_MANY)
            transport.close()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended."""
        self._stop_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client has not taken what it was sent."""
        super().pause_writing()
        self._start_timer(self.idle_seconds, self._abort)

    def resume_writing(self) -> None:
        """The client goes on."""
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        """Wait for what the client has to send next, if anything."""
        if self.transport.is_closing() or self.flow.write_paused:
            return
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._start_timer(self.idle_seconds, self._end_silent_body)
        elif state is not h11.IDLE:
            self._stop_timer()
        elif not self._waits_for_headers:  # a byte now and then does not prolong the time
            self._start_timer(self.header_seconds, self._refuse_slow_headers)
            self._waits_for_headers = True

    def _start_timer(self, seconds: float, at_end: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, at_end)

    def _stop_timer(self) -> None:
        self._waits_for_headers = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_slow_headers(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
            self.transport.close()

    def _end_silent_body(self) -> None:
        if self.flow.read_paused:  # the server has not taken what was sent
            self._watch()
        else:
            self._abort()

    def _abort(self) -> None:
        self.transport.abort()


def make_server_config(app: Any, connections: int, **options: Any) -> uvicorn.Config:
    """Settings of uvicorn for an application that has at most so many connections at a time."""
    protocol = type("Connection", (BoundedConnection,), {"most": connections})
    options = {"log_level": "critical", "timeout_graceful_shutdown": _SHUTDOWN_SECONDS, **options}
    return uvicorn.Config(app, http=protocol, **options)
