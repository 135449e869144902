"""OpenAI's protocol under /v1: models, chat completions, completions and files, for clients that speak it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, HTTPException, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer

from ..errors import InputError
from ..qa.messages import Message
from ..text.document_text import DocumentText
from .chat import ChatAnswer, ChatService
from .documents import StoredDocument
from .openai_schemas import ChatBody, ChatMessage, CompletionBody, GenerationBody
from .routes import Answers, Worker, read_upload, start_answer, store_document
from .streaming import AnswerStream

router = APIRouter(prefix="/v1", dependencies=[Depends(HTTPBearer(auto_error=False))], tags=["OpenAI's protocol"])
_FILE_ID = "file-"
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


async def _get_chat(request: Request) -> ChatService:
    return request.app.state.chat


Chat = Annotated[ChatService, Depends(_get_chat)]


def error_response(status: int, message: str) -> JSONResponse:
    """An error as the clients of this protocol expect it."""
    return JSONResponse(_error(status, message), status)


def _error(status: int, message: str) -> dict[str, Any]:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


@router.get("/models")
def list_models(request: Request) -> dict[str, Any]:
    """The model of this server."""
    return {"object": "list", "data": [_model(request)]}


@router.get("/models/{name:path}")
def get_model(name: str, request: Request) -> dict[str, Any]:
    """The model of this server, by its name."""
    _check_model(name, request)
    return _model(request)


@router.post("/chat/completions")
async def complete_chat(body: ChatBody, request: Request, chat: Chat, worker: Worker, answers: Answers) -> Response:
    """Answer the last message of a chat, whose messages and attached files may have any length."""
    _check_model(body.model, request)
    body.check_supported()
    messages = await run_in_threadpool(_read_messages, body.messages, worker)
    sampling = body.sampling()

    def generate(stream: AnswerStream) -> ChatAnswer:
        return chat.answer(messages, sampling, stream.put_text, stream.put_progress, stream.cancelled)

    return await _respond(generate, body, request, answers, "chat.completion")


@router.post("/completions")
async def complete_text(body: CompletionBody, request: Request, chat: Chat, answers: Answers) -> Response:
    """Continue a text of any length."""
    _check_model(body.model, request)
    body.check_supported()
    prompt, sampling = body.text, body.sampling()

    def generate(stream: AnswerStream) -> ChatAnswer:
        return chat.complete(prompt, sampling, stream.put_text, stream.cancelled)

    return await _respond(generate, body, request, answers, "text_completion")


@router.get("/files")
def list_files(worker: Worker) -> dict[str, Any]:
    """All documents of the server."""
    return {"object": "list", "data": [_file(document) for document in worker.documents.all()], "has_more": False}


@router.post("/files")
def add_file(file: UploadFile, worker: Worker, purpose: Annotated[str, Form()] = "user_data") -> dict[str, Any]:
    """Add a document of any of the known formats; it is indexed in the background."""
    return {**_file(store_document(worker, *read_upload(file, worker))), "purpose": purpose}


@router.get("/files/{file_id}")
def get_file(file_id: str, worker: Worker) -> dict[str, Any]:
    """One document."""
    return _file(_find_file(file_id, worker))


@router.get("/files/{file_id}/content", response_class=PlainTextResponse)
def get_file_content(file_id: str, worker: Worker) -> Response:
    """The text of a document."""
    return PlainTextResponse(worker.documents.read_text(_find_file(file_id, worker)))


@router.delete("/files/{file_id}")
def delete_file(file_id: str, worker: Worker) -> dict[str, Any]:
    """Delete a document and its memory."""
    worker.remove(_find_file(file_id, worker))
    return {"id": file_id, "object": "file", "deleted": True}


async def _respond(
    generate: Callable[[AnswerStream], ChatAnswer],
    body: GenerationBody,
    request: Request,
    answers: dict[str, AnswerStream],
    kind: str,
) -> Response:
    stream = start_answer(generate, answers, request.app.state.worker.limits)
    is_chat = kind.startswith("chat")
    answer_id = f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}"
    head = {"id": answer_id, "created": int(time.time()), "model": body.model}
    if body.stream:
        events = _events(stream, request, {**head, "object": f"{kind}.chunk" if is_chat else kind}, body)
        return StreamingResponse(events, media_type="text/event-stream")
    async for event, content in stream.items(request):
        if event == "done":
            return JSONResponse({**head, "object": kind, "choices": [_choice(kind, content)], "usage": _usage(content)})
        if event == "failed":
            return error_response(stream.error_status, content)
    return error_response(499, "the request was cancelled")


async def _events(
    stream: AnswerStream, request: Request, head: dict[str, Any], body: GenerationBody
) -> AsyncIterator[str]:
    is_chat = head["object"].startswith("chat")

    def chunk(text: str | None, reason: str | None = None) -> str:
        if is_chat:
            choice: dict[str, Any] = {"index": 0, "delta": {} if text is None else {"content": text}}
        else:
            choice = {"index": 0, "text": text or ""}
        return _data({**head, "choices": [{**choice, "finish_reason": reason, "logprobs": None}]})

    if is_chat:
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        yield _data({**head, "choices": [first]})
    async for event, content in stream.items(request):
        if event == "text":
            yield chunk(content)
        elif event == "progress":
            yield f": indexed {content['done']} of {content['of']} windows\n\n"  # a comment, which keeps the connection
        elif event == "done":
            yield chunk(None, content["finish_reason"])
            if body.includes_usage:
                yield _data({**head, "choices": [], "usage": _usage(content)})
        else:
            yield _data(_error(stream.error_status, str(content)))
    yield "data: [DONE]\n\n"


def _data(content: Any) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _choice(kind: str, answer: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": answer["finish_reason"], "logprobs": None}
    if not kind.startswith("chat"):
        return {**choice, "text": answer["text"]}
    message = {"role": "assistant", "content": answer["text"], "refusal": None}
    return {**choice, "message": message, "passages": answer["passages"]}


def _usage(answer: dict[str, Any]) -> dict[str, int]:
    prompt, completion = answer["prompt_tokens"], answer["completion_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _model(request: Request) -> dict[str, Any]:
    state = request.app.state
    return {"id": state.model_name, "object": "model", "created": state.started, "owned_by": "unlimiformer"}


def _check_model(name: str, request: Request) -> None:
    if name != request.app.state.model_name:
        raise HTTPException(404, f"the model is {name!r}; this server has {request.app.state.model_name!r}")


def _read_messages(messages: Sequence[ChatMessage], worker: Worker) -> list[Message]:
    """The messages with the texts of their files, which may take a while to read."""
    read = [_read_message(message, worker) for message in messages]
    limit = worker.limits.document_bytes
    if sum(len(part.text.encode("utf-8", "surrogatepass")) for message in read for part in message.documents) > limit:
        raise HTTPException(413, f"the attached files have more than {limit:,} bytes of text, which is the limit")
    return read


def _read_message(message: ChatMessage, worker: Worker) -> Message:
    texts: list[str] = []
    documents: list[DocumentText] = []
    for part in message.parts:
        if part.type in ("text", "input_text", "output_text"):
            texts.append(part.text or "")
        elif part.type == "file" and part.file is not None:
            file_id = part.file.file_id
            documents.append(part.file.content() if file_id is None else _file_content(file_id, worker))
        else:
            raise InputError(f"a part of a message is of type {part.type!r}; expected text or file")
    role = "system" if message.role == "developer" else message.role
    return Message(role, "\n\n".join(texts), tuple(documents))


def _file_content(file_id: str, worker: Worker) -> DocumentText:
    return worker.documents.content(_find_file(file_id, worker))


def _find_file(file_id: str, worker: Worker) -> StoredDocument:
    document = worker.documents.get(file_id.removeprefix(_FILE_ID)) if file_id.startswith(_FILE_ID) else None
    if document is None:
        raise HTTPException(404, f"no file {file_id!r}")
    return document


def _file(document: StoredDocument) -> dict[str, Any]:
    states = {"ready": "processed", "failed": "error"}
    return {
        "id": _FILE_ID + document.id,
        "object": "file",
        "bytes": document.characters,
        "created_at": int(document.created),
        "filename": PurePath(document.name).name,
        "purpose": "user_data",
        "status": states.get(document.state, "uploaded"),
        "status_details": document.error,
    }
