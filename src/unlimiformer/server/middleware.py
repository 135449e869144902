"""ASGI middleware: origin, token and body-size checks before a request is handled, and security headers after it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import HTTPException, Request, Response
from starlette.responses import PlainTextResponse

_PROTECTED = ("/api", "/v1", "/docs", "/redoc", "/openapi")  # paths that need the token
_ONCE = (b"origin", b"host", b"authorization", b"content-length")
_CLOSE = {"Connection": "close"}
_CONTENT_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"


class RequestGuard:
    """Refuse requests from other origins, API requests without the token, and bodies of more than `max_bytes`."""

    def __init__(self, app: Any, max_bytes: int, token: str | None) -> None:
        self._app, self._max_bytes, self._token = app, max_bytes, token

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Check one request and pass it on, counting the bytes of its body while they arrive."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._ambiguity(scope["headers"]) or self._refusal(scope, dict(scope["headers"]))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        received_bytes = 0

        async def receive_limited() -> Any:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._max_bytes:
                raise HTTPException(413, self._too_large())
            return message

        await self._app(scope, receive_limited, send)

    def _ambiguity(self, headers: Sequence[tuple[bytes, bytes]]) -> PlainTextResponse | None:
        """Return the response that refuses headers which a proxy before this server may understand otherwise."""
        names = [name for name, _ in headers]
        for name in _ONCE:
            if (count := names.count(name)) > 1:
                return PlainTextResponse(f"expected one header {name.decode()}, not {count}", 400, _CLOSE)
        if b"content-length" in names and b"transfer-encoding" in names:
            return PlainTextResponse("expected content-length or transfer-encoding, not both", 400, _CLOSE)
        return None

    def _refusal(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> PlainTextResponse | None:
        """Return the response that refuses a request, or None for a request that may pass."""
        origin, host = headers.get(b"origin", b""), headers.get(b"host", b"")
        if scope["method"] not in ("GET", "HEAD") and origin and origin.split(b"://", 1)[-1] != host:
            return PlainTextResponse("requests from other sites are refused", 403)
        if scope["path"].startswith(_PROTECTED) and not self._is_authorized(headers.get(b"authorization", b"")):
            challenge = {"WWW-Authenticate": "Bearer"}
            return PlainTextResponse("expected the header Authorization: Bearer TOKEN", 401, challenge)
        size = headers.get(b"content-length", b"")
        if size.isdigit() and int(size) > self._max_bytes:
            return PlainTextResponse(self._too_large(), 413)
        return None

    def _is_authorized(self, header: bytes) -> bool:
        return self._token is None or secrets.compare_digest(header, f"Bearer {self._token}".encode())

    def _too_large(self) -> str:
        return f"the request has more than {self._max_bytes:,} bytes, which is the limit"


async def add_security_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Allow the page to load nothing from elsewhere. The viewer of /docs has a script of its own in its page."""
    response = await call_next(request)
    if not request.url.path.startswith(("/docs", "/openapi")):
        response.headers["Content-Security-Policy"] = _CONTENT_POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response
