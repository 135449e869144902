"""The Model Context Protocol: tools with which an assistant indexes documents and asks about them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from .. import __version__
from ..errors import UnlimiformerError
from ..provenance.evidence import EvidenceSearch
from ..summaries.base import summary_tokens
from ..text.citations import Citations
from ..text.sources import read_document
from .documents import UNFINISHED, StoredDocument
from .worker import BackgroundWorker

_INSTRUCTIONS = (
    "Reads documents of any length on this machine: index a file once, then ask about it, summarise it or quote it. "
    "Answers come with the passages that they were made from."
)
_POLL_SECONDS = 0.1


def create_mcp_server(worker: BackgroundWorker) -> MCPServer:
    """A server whose tools use the documents and the model of a worker."""
    server = MCPServer("unlimiformer", instructions=_INSTRUCTIONS, version=__version__, log_level="ERROR")
    library = _Library(worker)

    @server.tool()
    async def index_document(path: str, context: Context, name: str | None = None) -> dict[str, Any]:
        """Index a file (PDF, EPUB, DOCX, HTML, subtitles, text) so that questions about it can be answered.

        A file that is indexed already is not read again.
        """
        document = await anyio.to_thread.run_sync(library.add, path, name)
        while document.state in UNFINISHED:
            done, total = worker.progress(document)
            await context.report_progress(done, total or None)
            await anyio.sleep(_POLL_SECONDS)
            document = library.find(document.id)
        if document.state == "failed":
            raise ToolError(f"{path} could not be indexed: {document.error}")
        return _describe(document)

    @server.tool()
    async def list_documents() -> list[dict[str, Any]]:
        """List the documents: their ids, names, sizes in tokens, and states."""
        return [_describe(document) for document in worker.documents.all()]

    @server.tool()
    async def ask(document: str, question: str) -> dict[str, Any]:
        """Answer a question about a document (its id or its name), with the passages that the answer came from."""
        found = library.find_ready(document)
        answer = await _run(worker, found, question, None)
        return {"answer": answer.text, "passages": _passages(answer.provenance)}

    @server.tool()
    async def summarize(document: str, words: int = 200) -> dict[str, Any]:
        """Summarise a document (its id or its name) in about so many words, with the passages of every sentence."""
        found = library.find_ready(document)
        answer = await _run(worker, found, None, summary_tokens(max(1, words)))
        sentences = (answer.provenance or {}).get("sentences", [])
        return {
            "summary": answer.text,
            "sentences": [{"text": row["text"], "passages": _quotes(row["passages"])} for row in sentences],
        }

    @server.tool()
    async def quote(document: str, words: str, count: int = 3) -> list[dict[str, Any]]:
        """Quote the passages of a document (its id or its name) that share most with some words."""
        return await anyio.to_thread.run_sync(library.quote, document, words, count)

    return server


class _Library:
    """The documents of a worker, by id or by name."""

    def __init__(self, worker: BackgroundWorker) -> None:
        self._worker = worker

    def add(self, path: str, name: str | None) -> StoredDocument:
        """Store the text of a file, unless it is stored already."""
        try:
            content = read_document(Path(path).expanduser())
        except UnlimiformerError as error:
            raise ToolError(str(error)) from None
        if stored := self._worker.documents.find_by_text(content.text):
            return stored[0]
        try:
            return self._worker.add(name or Path(path).name, content)
        except (UnlimiformerError, OSError) as error:
            raise ToolError(str(error)) from None

    def find(self, name: str) -> StoredDocument:
        """The document with this id, or the newest with this name."""
        documents = self._worker.documents
        found = documents.get(name)
        named = [document for document in documents.all() if document.name == name]
        if found is None and not named:
            known = ", ".join(document.name for document in documents.all()) or "none"
            raise ToolError(f"there is no document {name!r}; there are: {known}. Index a file first")
        return found or named[-1]

    def find_ready(self, name: str) -> StoredDocument:
        """A document that can be asked about."""
        document = self.find(name)
        if document.state != "ready":
            raise ToolError(f"{document.name} is not ready yet (its state is {document.state}); wait and try again")
        return document

    def quote(self, name: str, words: str, count: int) -> list[dict[str, Any]]:
        """The best passages for some words, in the order of the document."""
        document = self.find(name)
        content = self._worker.documents.content(document)
        found = EvidenceSearch(content.text).find(words, [(0, len(content.text))], max(1, min(count, 20)))
        passages = sorted(found, key=lambda passage: passage.start)
        return _quotes(Citations(content.text, content.locations).quote(passages))


async def _run(worker: BackgroundWorker, document: StoredDocument, question: str | None, tokens: int | None) -> Any:
    """An answer, generated in a thread; it stops when the client cancels the request."""
    cancelled = threading.Event()

    def generate() -> Any:
        try:
            return worker.answer(document, question, lambda _: None, cancelled, new_tokens=tokens)
        except UnlimiformerError as error:
            raise ToolError(str(error)) from None

    try:
        return await anyio.to_thread.run_sync(generate, abandon_on_cancel=True)
    finally:
        cancelled.set()


def _describe(document: StoredDocument) -> dict[str, Any]:
    fields = ("id", "name", "characters", "tokens", "state", "error")
    return {name: value for name in fields if (value := getattr(document, name)) is not None}


def _passages(provenance: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [] if provenance is None else _quotes(provenance["passages"])


def _quotes(passages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: passage[name] for name in ("text", "location", "start")} for passage in passages]
