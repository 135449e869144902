"""Who may come in, before anything is read of what they bring."""

from __future__ import annotations

import secrets
from typing import Any

from fastapi import HTTPException
from starlette.responses import PlainTextResponse


class RequestGuard:
    """Around an application: refuses other sites, the API without its token, and bodies of more than `most` bytes."""

    def __init__(self, app: Any, most: int, token: str | None) -> None:
        self._app, self._most, self._token = app, most, token

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refused(scope, dict(scope["headers"]))
        if refused is not None:
            await refused(scope, receive, send)
            return
        taken = 0

        async def counted() -> Any:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise HTTPException(413, f"at most {self._most:,} bytes are taken")
            return message

        await self._app(scope, counted, send)

    def _refused(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> PlainTextResponse | None:
        origin, host = headers.get(b"origin", b""), headers.get(b"host", b"")
        if scope["method"] not in ("GET", "HEAD") and origin and origin.split(b"://", 1)[-1] != host:
            return PlainTextResponse("requests of other sites are refused", 403)
        if scope["path"].startswith("/api") and not self._knows(headers.get(b"authorization", b"")):
            told = {"WWW-Authenticate": "Bearer"}
            return PlainTextResponse("expected the header Authorization: Bearer TOKEN", 401, told)
        size = headers.get(b"content-length", b"")
        if size.isdigit() and int(size) > self._most:
            return PlainTextResponse(f"at most {self._most:,} bytes are taken", 413)
        return None

    def _knows(self, given: bytes) -> bool:
        return self._token is None or secrets.compare_digest(given, f"Bearer {self._token}".encode())
