"""The server's application: routes, middleware, shared state, and what happens at shutdown."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from .. import __version__
from ..errors import InputError, StorageError
from ..utils.files import is_disk_full, os_error_behind
from . import openai, routes
from .chat import ChatService
from .middleware import RequestGuard, add_security_headers
from .worker import BackgroundWorker

_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]


def create_app(
    worker: BackgroundWorker, model_name: str, token: str | None = None, host: str | None = "127.0.0.1"
) -> FastAPI:
    """Create the application; it closes the worker at shutdown.

    Parameters
    ----------
    worker : indexes and answers
    model_name : shown on the page
    token : required in every request to the API, if given
    host : the address the server listens on if only this machine can reach it, else None. Requests for other host
        names are then refused, since another site could resolve its own name to this machine.
    """
    app = FastAPIOffline(title="Unlimiformer", version=__version__, lifespan=_lifespan)
    app.state.worker, app.state.model_name, app.state.answers = worker, model_name, {}
    app.state.chat, app.state.started = ChatService(worker), int(time.time())
    # JSON escapes can make a body three times as long as its text; names and the form around a file add a little.
    app.add_middleware(RequestGuard, max_bytes=3 * worker.limits.document_bytes + 100_000, token=token)
    if host is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[host, *_LOOPBACK])
    app.middleware("http")(add_security_headers)
    app.exception_handler(RequestValidationError)(_report_invalid_request)
    app.exception_handler(StarletteHTTPException)(_report_http_error)
    app.exception_handler(InputError)(_report_input_error)
    app.exception_handler(StorageError)(_report_storage_error)
    app.exception_handler(OSError)(_report_storage_error)
    app.include_router(routes.api)
    app.include_router(openai.router)
    app.include_router(routes.pages)  # last: it has a route for any name
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    for stream in list(app.state.answers.values()):
        stream.cancel()
    await asyncio.to_thread(app.state.worker.close)


async def _report_invalid_request(request: Request, error: RequestValidationError) -> Response:
    """Say what is wrong without repeating the input, which may hold characters that cannot be encoded as UTF-8."""
    details = [{key: item[key] for key in ("loc", "msg", "type")} for item in error.errors()]
    if _is_openai(request):
        first = details[0]
        return openai.error_response(400, f"{'.'.join(str(part) for part in first['loc'][1:])}: {first['msg']}")
    return Response(json.dumps({"detail": details}), 422, media_type="application/json")


async def _report_http_error(request: Request, error: StarletteHTTPException) -> Response:
    if isinstance(error.__cause__, OSError):  # while the body was put aside on a disk
        return await _report_storage_error(request, error.__cause__)
    if _is_openai(request):
        return openai.error_response(error.status_code, str(error.detail))
    return await http_exception_handler(request, error)


async def _report_input_error(request: Request, error: InputError) -> Response:
    return openai.error_response(400, str(error)) if _is_openai(request) else JSONResponse({"detail": str(error)}, 422)


async def _report_storage_error(request: Request, error: Exception) -> Response:
    """Say what the file system refused, without the paths of this machine."""
    refusal = os_error_behind(error)
    reason = "" if refusal is None else f" ({refusal.strerror})"
    status, message = 503, f"the server's storage is not available{reason}; try again later"
    if is_disk_full(error):
        status, message = 507, f"the server's disk is full{reason}; delete documents or free some space, then try again"
    if _is_openai(request):
        return openai.error_response(status, message)
    return JSONResponse({"detail": message}, status)


def _is_openai(request: Request) -> bool:
    return request.url.path.startswith("/v1/")
