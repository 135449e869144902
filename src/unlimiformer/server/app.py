"""The server's application: routes, middleware, shared state, and what happens at shutdown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.middleware.trustedhost import TrustedHostMiddleware

from .. import __version__
from . import routes
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
    app = FastAPI(title="Unlimiformer", version=__version__, lifespan=_lifespan)
    app.state.worker, app.state.model_name, app.state.answers = worker, model_name, {}
    # JSON escapes can make a body three times as long as its text; names and the form around a file add a little.
    app.add_middleware(RequestGuard, max_bytes=3 * worker.limits.document_bytes + 100_000, token=token)
    if host is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[host, *_LOOPBACK])
    app.middleware("http")(add_security_headers)
    app.exception_handler(RequestValidationError)(_report_invalid_request)
    app.include_router(routes.api)
    app.include_router(routes.pages)  # last: it has a route for any name
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    for stream in list(app.state.answers.values()):
        stream.cancel()
    await asyncio.to_thread(app.state.worker.close)


async def _report_invalid_request(_: Request, error: RequestValidationError) -> Response:
    """Say what is wrong without repeating the input, which may hold characters that cannot be encoded as UTF-8."""
    details = [{key: item[key] for key in ("loc", "msg", "type")} for item in error.errors()]
    return Response(json.dumps({"detail": details}), 422, media_type="application/json")
