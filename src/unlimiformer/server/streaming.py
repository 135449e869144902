"""Server-sent events: the changes of some state, and an answer while it is generated."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from fastapi import Request

from ..errors import InputError, UnlimiformerError
from .changes import Changes
from .priority_lock import CancelledError

_PAUSE_SECONDS = 0.2  # between two events of a state that changes fast
_SILENCE_SECONDS = 30.0  # after which a comment shows whether the client is still there
_COMMENT = ": still here\n\n"
_DISCONNECT_CHECK_SECONDS = 1.0


def format_event(kind: str, content: Any) -> str:
    """Return one server-sent event with JSON data."""
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n"


async def iter_events(
    kind: str, get_state: Callable[[], Any], changes: Changes, is_last: Callable[[Any], bool] = lambda state: False
) -> AsyncIterator[str]:
    """Yield events with the state, now and whenever it has changed, up to the last one or until it is None."""
    previous = None
    with changes.watch() as changed:
        while (state := get_state()) is not None:
            if state != previous:
                previous = state
                yield format_event(kind, state)
                if is_last(state):
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
            try:
                await asyncio.wait_for(changed.wait(), _SILENCE_SECONDS)
            except asyncio.TimeoutError:
                yield _COMMENT
            changed.clear()
    yield format_event("removed", {})


class AnswerStream:
    """One answer: generated in a thread of its own and sent to the client as events while it grows.

    Create it in the event loop.

    Parameters
    ----------
    generate : returns the answer, a dataclass; it is given this stream for its text and progress.
    on_end : called in the thread when generation has ended, in any way.
    """

    def __init__(self, generate: Callable[[AnswerStream], Any], on_end: Callable[[AnswerStream], object]) -> None:
        self.id = secrets.token_hex(8)
        self._generate, self._on_end = generate, on_end
        self.cancelled = threading.Event()
        self.error_status = 500
        """HTTP status of a failure: 400 if the request was wrong."""
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def start(self) -> None:
        """Start to generate, or to wait for the model."""
        threading.Thread(target=self._run, daemon=True).start()

    def cancel(self) -> None:
        """Stop the answer at the next token, or before it begins."""
        self.cancelled.set()

    def put_text(self, text: str) -> None:
        """Send a piece of the answer."""
        self._put("text", text)

    def put_progress(self, done: int, total: int) -> None:
        """Send how much is done before the answer begins."""
        self._put("progress", {"done": done, "of": total})

    async def events(self, request: Request) -> AsyncIterator[str]:
        """Yield the answer's id, its text piece by piece, and its end, as server-sent events."""
        yield format_event("asked", {"id": self.id})
        async for kind, content in self.items(request):
            yield format_event(kind, content)

    async def items(self, request: Request) -> AsyncIterator[tuple[str, Any]]:
        """Yield "text" and "progress" as they come, then "done", "stopped" or "failed"; cancel if the client leaves."""
        try:
            while True:
                try:
                    kind, content = await asyncio.wait_for(self._events.get(), _DISCONNECT_CHECK_SECONDS)
                except asyncio.TimeoutError:
                    if await request.is_disconnected():
                        return
                    continue
                yield kind, content
                if kind not in ("text", "progress"):
                    return
        finally:
            self.cancel()

    def _run(self) -> None:
        last_event = self._generate_last_event()
        self._on_end(self)  # first, so that a client that has seen the end is no longer counted
        self._put(*last_event)

    def _generate_last_event(self) -> tuple[str, Any]:
        try:
            answer = self._generate(self)
            return "done", asdict(answer)
        except CancelledError:
            return "stopped", "cancelled"
        except UnlimiformerError as error:
            self.error_status = 400 if isinstance(error, InputError) else 500
            return "failed", str(error)
        except Exception as error:
            return "failed", f"{type(error).__name__}: {error}"

    def _put(self, kind: str, content: Any) -> None:
        with suppress(RuntimeError):  # the event loop is closed: the server is shutting down
            self._loop.call_soon_threadsafe(self._events.put_nowait, (kind, content))
