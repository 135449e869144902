"""The API and the page. Requests are checked here; what they want is done by the worker."""

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response, UploadFile
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware

from .. import __version__, provenance
from ..errors import UnlimiformerError
from .documents import StoredDocument
from .middleware import RequestGuard
from .worker import BackgroundWorker, CancelledError

_STATIC = Path(__file__).with_name("static")
_SHARED = Path(provenance.__file__).with_name("static")
_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]
Number = Annotated[str, InPath(pattern="^[0-9a-f]{16}$", description="A document's id.")]


class Pasted(BaseModel):
    """A text, and what to call it."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=200)
    text: str = Field(min_length=1)


class Question(BaseModel):
    """What to ask; without a question, for a summary. `compare`: also ask the truncated model."""

    model_config = ConfigDict(extra="forbid")
    question: str | None = None
    compare: bool = False
    new_tokens: int | None = Field(default=None, ge=1, le=100_000)


def create_app(
    worker: BackgroundWorker, model: str, token: str | None = None, host: str | None = "127.0.0.1"
) -> FastAPI:
    """The server's application. With a `token` every request of the API needs it.

    `host`: what it listens on, if that is this machine alone: other names of hosts are then refused, since a page of
    another site could resolve its own name to this machine.
    """
    limits, library = worker.limits, worker.library
    running: dict[str, threading.Event] = {}

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        for event in list(running.values()):
            event.set()
        await asyncio.to_thread(worker.close)

    app = FastAPI(title="Unlimiformer", version=__version__, lifespan=life)
    app.state.running = running
    app.add_middleware(
        RequestGuard, most=3 * limits.document_bytes + 100_000, token=token
    )  # JSON may escape what it holds
    if host is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[host, *_LOOPBACK])

    @app.middleware("http")
    async def marked(request: Request, pass_on: Callable[[Request], Any]) -> Response:
        response: Response = await pass_on(request)
        if not request.url.path.startswith(("/docs", "/openapi")):
            response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.exception_handler(RequestValidationError)
    async def unfit(_: Request, error: RequestValidationError) -> Response:
        told = [{name: each[name] for name in ("loc", "msg", "type")} for each in error.errors()]
        return Response(json.dumps({"detail": told}), 422, media_type="application/json")

    def found(number: Number) -> StoredDocument:
        document = library.get(number)
        if document is None:
            raise HTTPException(404, f"no document {number}")
        return document

    Found = Annotated[StoredDocument, Depends(found)]
    guard = [Depends(HTTPBearer(auto_error=False))]  # it is the Guard that looks; this tells /docs
    missing: dict[int | str, dict[str, Any]] = {404: {"description": "no such document"}}

    @app.get("/api/status", dependencies=guard)
    def status() -> dict[str, Any]:
        """The model, and what may be done with it."""
        told = {"model": model, "version": __version__, "plain_window": worker.context_length, "limits": vars(limits)}
        return {**told, "answering": len(running)}

    @app.get("/api/documents", dependencies=guard)
    def documents() -> list[dict[str, Any]]:
        """All of them."""
        return [asdict(each) for each in library.documents()]

    def added(name: str, text: str) -> dict[str, Any]:
        if len(text.encode()) > limits.document_bytes:
            raise HTTPException(413, f"the text has more than {limits.document_bytes:,} bytes")
        if not text.strip():
            raise HTTPException(422, "the text is empty")
        if len(library.documents()) >= limits.documents:
            raise HTTPException(409, f"there are {limits.documents} documents already; delete one")
        document = library.add(name.strip() or "unnamed", text)
        worker.added()
        return asdict(document)

    @app.post("/api/documents", status_code=201, dependencies=guard, responses={409: {}, 413: {}})
    def paste(pasted: Pasted) -> dict[str, Any]:
        """Adds a text; it is read in the background."""
        return added(pasted.name, pasted.text)

    @app.post("/api/files", status_code=201, dependencies=guard, responses={409: {}, 413: {}})
    def upload(file: UploadFile) -> dict[str, Any]:
        """Adds a UTF-8 text file."""
        content = file.file.read(limits.document_bytes + 1)
        if len(content) > limits.document_bytes:
            raise HTTPException(413, f"the file has more than {limits.document_bytes:,} bytes")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise HTTPException(422, f"byte {error.start} is no UTF-8; expected a text file in UTF-8") from None
        return added((file.filename or "unnamed")[:200], text)

    @app.get("/api/documents/{number}", dependencies=guard, responses=missing)
    def document(document: Found) -> dict[str, Any]:
        """One of them."""
        return asdict(document)

    @app.get("/api/documents/{number}/text", dependencies=guard, responses=missing, response_class=PlainTextResponse)
    def text(document: Found) -> Response:
        """Its text."""
        return PlainTextResponse(library.text(document))

    @app.delete("/api/documents/{number}", status_code=204, dependencies=guard, responses=missing)
    def remove(document: Found) -> None:
        """Removes it and all that was made of it."""
        library.remove(document.id)
        worker.forget(document)

    def told_of(document: StoredDocument) -> dict[str, Any]:
        done, of = worker.progress(document)
        return {**asdict(document), "done": done, "of": of}

    @app.get("/api/documents/{number}/progress", dependencies=guard, responses=missing)
    def progress(document: Found) -> StreamingResponse:
        """Server-sent events until it is read: its state, windows done and of how many."""

        async def events() -> AsyncIterator[str]:
            async for state in _changes(lambda: None if (now := library.get(document.id)) is None else told_of(now)):
                yield _event("progress", state)
                if state["state"] in ("ready", "failed"):
                    return
            yield _event("removed", {})

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.get("/api/progress", dependencies=guard)
    def all_progress() -> StreamingResponse:
        """Server-sent events without an end: all documents, whenever one of them changes."""

        async def events() -> AsyncIterator[str]:
            async for state in _changes(lambda: [told_of(each) for each in library.documents()]):
                yield _event("documents", state)

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.post(
        "/api/documents/{number}/answers",
        dependencies=guard,
        responses={**missing, 409: {"description": "it is not read yet"}, 429: {"description": "too many wait"}},
    )
    async def ask(document: Found, asked: Question, request: Request) -> StreamingResponse:
        """Server-sent events: the answer's id, its text as it comes, and at the end where it came from."""
        question = None if asked.question is None else asked.question.strip()
        if question == "" or len(question or "") > limits.question:
            raise HTTPException(422, f"a question has 1 to {limits.question:,} characters")
        if document.state != "ready":
            raise HTTPException(409, f"the document is {document.state}; wait until it is ready")
        if len(running) >= limits.waiting:
            raise HTTPException(429, "too many questions are waiting; ask again later", {"Retry-After": "5"})
        number, cancelled = secrets.token_hex(8), threading.Event()
        loop, told = asyncio.get_running_loop(), asyncio.Queue[tuple[str, Any]]()

        def tell(kind: str, content: Any) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(told.put_nowait, (kind, content))

        def work() -> None:
            log = partial(tell, "text")
            try:
                answer = worker.answer(document, question, log, cancelled, asked.compare, asked.new_tokens)
                tell("done", asdict(answer))
            except CancelledError:
                tell("stopped", "cancelled")
            except UnlimiformerError as error:
                tell("failed", str(error))
            except Exception as error:
                tell("failed", f"{type(error).__name__}: {error}")
            finally:
                running.pop(number, None)

        running[number] = cancelled
        threading.Thread(target=work, daemon=True).start()
        return StreamingResponse(_streamed(number, told, cancelled, request), media_type="text/event-stream")

    @app.delete("/api/answers/{number}", status_code=204, dependencies=guard, responses={404: {}})
    def cancel(number: Number) -> None:
        """Stops an answer that is being written or waits for it."""
        if number not in running:
            raise HTTPException(404, f"no answer {number} is being written")
        running[number].set()

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html")

    @app.get("/{name}", include_in_schema=False)
    def part(name: str) -> FileResponse:
        for folder, names in ((_STATIC, ("page.js", "icon.svg")), (_SHARED, ("highlight.js", "page.css"))):
            if name in names:
                return FileResponse(folder / name)
        raise HTTPException(404, "no such page")

    return app


async def _streamed(
    number: str, told: asyncio.Queue[tuple[str, Any]], cancelled: threading.Event, request: Request
) -> AsyncIterator[str]:
    """An answer's events as they come; it is cancelled when its reader goes away."""
    try:
        yield _event("asked", {"id": number})
        while True:
            try:
                kind, content = await asyncio.wait_for(told.get(), 1.0)
            except asyncio.TimeoutError:
                if await request.is_disconnected():
                    return
                continue
            yield _event(kind, content)
            if kind != "text":
                return
    finally:
        cancelled.set()


async def _changes(look: Callable[[], Any]) -> AsyncIterator[Any]:
    """What is seen, whenever it is another thing than before; until there is nothing."""
    before = None
    while (now := look()) is not None:
        if now != before:
            before = now
            yield now
        await asyncio.sleep(0.2)


def _event(kind: str, content: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n"
