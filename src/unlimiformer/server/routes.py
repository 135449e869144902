"""Routes of the API and of the page. They check requests; the worker does the work.

The application's state holds what they need: `worker`, `model_name`, and `answers` by id while they are generated.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response, UploadFile
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from fastapi.security import HTTPBearer

from .. import __version__, provenance
from ..errors import InputError
from ..qa import Turn
from ..text.document_text import DocumentText
from ..text.formats import extract
from .answers import ServedAnswer
from .documents import UNFINISHED, StoredDocument, TooManyDocumentsError
from .limits import Limits
from .schemas import PastedText, Question, QuestionAboutSeveral
from .streaming import AnswerStream, iter_events
from .worker import BackgroundWorker

_STATIC = Path(__file__).with_name("static")
_SHARED_STATIC = Path(provenance.__file__).with_name("static")
_FILES = {
    "page.js": _STATIC,
    "icon.svg": _STATIC,
    "highlight.js": _SHARED_STATIC,
    "page.css": _SHARED_STATIC,
}
_EVENTS = "text/event-stream"
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"description": "no such document"}}
_NOT_ANSWERED: dict[int | str, dict[str, Any]] = {
    **_NOT_FOUND,
    409: {"description": "a document is not ready"},
    429: {"description": "too many questions are waiting"},
}
_REFUSED: dict[int | str, dict[str, Any]] = {
    409: {"description": "too many documents"},
    413: {"description": "too large"},
    507: {"description": "the disk is full"},
}

# The middleware checks the token; this dependency only describes it in /docs.
api = APIRouter(prefix="/api", dependencies=[Depends(HTTPBearer(auto_error=False))])
pages = APIRouter(include_in_schema=False)


async def _get_worker(request: Request) -> BackgroundWorker:
    return request.app.state.worker


async def _get_answers(request: Request) -> dict[str, AnswerStream]:
    return request.app.state.answers


Worker = Annotated[BackgroundWorker, Depends(_get_worker)]
Answers = Annotated[dict[str, AnswerStream], Depends(_get_answers)]
DocumentId = Annotated[str, PathParameter(pattern="^[0-9a-f]{16}$", description="Id of a document.")]
AnswerId = Annotated[str, PathParameter(pattern="^[0-9a-f]{16}$", description="Id of an answer.")]


def _get_document(document_id: DocumentId, worker: Worker) -> StoredDocument:
    document = worker.documents.get(document_id)
    if document is None:
        raise HTTPException(404, f"no document {document_id}")
    return document


Document = Annotated[StoredDocument, Depends(_get_document)]


@api.get("/status")
def get_status(request: Request, worker: Worker, answers: Answers) -> dict[str, Any]:
    """Return the model, its context length, the limits, how many answers are open, and the health of indexing.

    `restarts` counts how often indexing ended unexpectedly and was started again, `error` says why the last time.
    """
    return {
        "model": request.app.state.model_name,
        "version": __version__,
        "context_length": worker.context_length,
        "limits": vars(worker.limits),
        "answering": len(answers),
        "indexing": worker.health,
    }


@api.get("/documents")
def list_documents(worker: Worker) -> list[dict[str, Any]]:
    """Return all documents, oldest first."""
    return [asdict(document) for document in worker.documents.all()]


@api.post("/documents", status_code=201, responses=_REFUSED)
def add_text(body: PastedText, worker: Worker) -> dict[str, Any]:
    """Add a text; it is indexed in the background."""
    return asdict(store_document(worker, body.name, DocumentText(body.text)))


@api.post("/files", status_code=201, responses=_REFUSED)
def add_file(file: UploadFile, worker: Worker) -> dict[str, Any]:
    """Add a text, a PDF, an EPUB book, a Word document, an HTML page or subtitles; it is indexed in the background."""
    return asdict(store_document(worker, *read_upload(file, worker)))


@api.get("/documents/{document_id}", responses=_NOT_FOUND)
def get_document(document: Document) -> dict[str, Any]:
    """Return one document: its name, size and state."""
    return asdict(document)


@api.get("/documents/{document_id}/text", responses=_NOT_FOUND, response_class=PlainTextResponse)
def get_text(document: Document, worker: Worker) -> Response:
    """Return the text of a document."""
    return PlainTextResponse(worker.documents.read_text(document))


@api.delete("/documents/{document_id}", status_code=204, responses=_NOT_FOUND)
def delete_document(document: Document, worker: Worker) -> None:
    """Delete a document and its memory."""
    worker.remove(document)


@api.get("/documents/{document_id}/progress", responses=_NOT_FOUND)
def stream_document_progress(document: Document, worker: Worker) -> StreamingResponse:
    """Stream events until a document is indexed: its state, windows `done`, and their number `of`."""

    def get_state() -> dict[str, Any] | None:
        current = worker.documents.get(document.id)
        return None if current is None else worker.describe(current)

    def is_last(state: dict[str, Any]) -> bool:
        return state["state"] not in UNFINISHED

    events = iter_events("progress", get_state, worker.documents.changes, is_last)
    return StreamingResponse(events, media_type=_EVENTS)


@api.get("/progress")
def stream_progress(worker: Worker) -> StreamingResponse:
    """Stream events without an end: all documents with their progress, whenever one of them changes."""
    events = iter_events("documents", worker.describe_all, worker.documents.changes)
    return StreamingResponse(events, media_type=_EVENTS)


@api.post("/documents/{document_id}/answers", responses=_NOT_ANSWERED)
async def ask(
    document: Document, body: Question, request: Request, worker: Worker, answers: Answers
) -> StreamingResponse:
    """Stream events: the answer's id, its text as it is generated, and at the end the passages it came from."""
    return _stream_answer([document], body.question, body, request, worker, answers, compare=body.compare)


@api.post("/answers", responses=_NOT_ANSWERED)
async def ask_several(
    body: QuestionAboutSeveral, request: Request, worker: Worker, answers: Answers
) -> StreamingResponse:
    """Ask several documents at once: the same events, and every passage says which document it is from."""
    documents = [_get_document(document_id, worker) for document_id in dict.fromkeys(body.documents)]
    return _stream_answer(documents, body.question, body, request, worker, answers)


@api.delete("/answers/{answer_id}", status_code=204, responses={404: {"description": "no such answer"}})
def cancel_answer(answer_id: AnswerId, answers: Answers) -> None:
    """Stop an answer that is being generated or is queued."""
    stream = answers.get(answer_id)
    if stream is None:
        raise HTTPException(404, f"no answer {answer_id} is being generated")
    stream.cancel()


@pages.get("/")
def get_page() -> FileResponse:
    """Return the page."""
    return FileResponse(_STATIC / "index.html")


@pages.get("/{name}")
def get_static_file(name: str) -> FileResponse:
    """Return a file that the page loads; only listed names, so that no path can be smuggled in."""
    if name not in _FILES:
        raise HTTPException(404, "no such page")
    return FileResponse(_FILES[name] / name)


def _stream_answer(
    documents: list[StoredDocument],
    question: str | None,
    body: Question | QuestionAboutSeveral,
    request: Request,
    worker: BackgroundWorker,
    answers: dict[str, AnswerStream],
    **options: Any,
) -> StreamingResponse:
    limits = worker.limits
    question = None if question is None else question.strip("\ufeff \t\r\n")
    if question == "" or len(question or "") > limits.question:
        raise HTTPException(422, f"expected a question of 1 to {limits.question:,} characters")
    for document in documents:
        if document.state != "ready":
            raise HTTPException(409, f"{document.name} is not ready (its state is {document.state}); wait until it is")
    options |= {"new_tokens": body.new_tokens, "turns": [Turn(turn.question, turn.answer) for turn in body.turns]}

    def generate(stream: AnswerStream) -> ServedAnswer:
        return worker.answer(documents, question, stream.put_text, stream.cancelled, **options)

    return StreamingResponse(start_answer(generate, answers, limits).events(request), media_type=_EVENTS)


def start_answer(
    generate: Callable[[AnswerStream], Any], answers: dict[str, AnswerStream], limits: Limits
) -> AnswerStream:
    """Start to generate an answer, which is one of `answers` until it ends; refuse it if there are too many."""
    if len(answers) >= limits.waiting:
        raise HTTPException(429, "too many questions are waiting; ask again later", {"Retry-After": "5"})
    stream = AnswerStream(generate, on_end=lambda ended: answers.pop(ended.id, None))
    answers[stream.id] = stream
    stream.start()
    return stream


def read_upload(file: UploadFile, worker: BackgroundWorker) -> tuple[str, DocumentText]:
    """The name and the text of an uploaded file of any known format."""
    limit = worker.limits.document_bytes
    content = file.file.read(limit + 1)
    if len(content) > limit:
        raise HTTPException(413, f"the file has more than {limit:,} bytes, which is the limit")
    name = (file.filename or "unnamed")[:200]
    try:
        return name, extract(content, name, PurePath(name).suffix)
    except InputError as error:
        raise HTTPException(422, str(error)) from None


def store_document(worker: BackgroundWorker, name: str, content: DocumentText) -> StoredDocument:
    """Store a document, which is then indexed in the background."""
    limit = worker.limits.document_bytes
    if len(content.text.encode("utf-8", "surrogatepass")) > limit:
        raise HTTPException(413, f"the text has more than {limit:,} bytes, which is the limit")
    try:
        return worker.add(name.strip() or "unnamed", content)
    except TooManyDocumentsError as error:
        raise HTTPException(409, str(error)) from None
