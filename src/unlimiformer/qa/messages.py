"""Chat messages as documents, earlier questions with their answers, and the question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..text.document_text import DocumentText
from ..text.questions import is_question

_LONGEST_QUESTION = 2000  # characters
_INSTRUCTION = re.compile(
    r"^\W*(please\b|can you\b|could you\b|answer|analy[sz]e|compare|describe|draft|explain|extract|find|give|identify"
    r"|list|name|outline|quote|rewrite|say|show|state|summari[sz]e|tell|translate|write)\b",
    re.IGNORECASE,
)
_LABEL = re.compile(r"^\W*(question|q|instruction|task|prompt)\s*:\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Message:
    """One message of a chat: who wrote it, its text, and the documents that are attached to it."""

    role: str
    text: str
    documents: tuple[DocumentText, ...] = ()


@dataclass(frozen=True)
class Turn:
    """A question that was asked before, and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class ChatRequest:
    """What a chat asks for.

    Parameters
    ----------
    documents : attached ones, and long messages.
    turns : earlier questions, with their answers.
    question : the last one; None asks for a summary of the documents.
    """

    documents: tuple[DocumentText, ...] = ()
    turns: tuple[Turn, ...] = field(default=())
    question: str | None = None

    @property
    def document(self) -> DocumentText:
        """All documents as one text."""
        joined = DocumentText("")
        for document in self.documents:
            joined = document if not joined.text else joined.before(document)
        return joined


def read_messages(messages: Sequence[Message], longest_message: int) -> ChatRequest:
    """Separate documents and questions; a message of more than `longest_message` characters holds a document."""
    documents: list[DocumentText] = []
    turns: list[Turn] = []
    asked: str | None = None
    for message in messages:
        documents += message.documents
        if message.role == "assistant":
            if asked is not None:
                turns.append(Turn(asked, message.text))
                asked = None
            continue
        text: str | None = message.text
        if len(message.text) > longest_message:
            document, text = split_message(message.text)
            documents.append(DocumentText(document))
        if message.role == "user":
            asked = text.strip() if text and text.strip() else asked
    return ChatRequest(tuple(documents), tuple(turns), asked)


def split_message(text: str) -> tuple[str, str | None]:
    """The document of a long message, and the question at its end or at its beginning; None if there is none."""
    text = text.strip()
    for separator in ("\n\n", "\n"):
        document, _, last = text.rpartition(separator)
        if document.strip() and _is_request(last):
            return document.strip(), _LABEL.sub("", last).strip()
        first, _, document = text.partition(separator)
        if document.strip() and _is_request(first):
            return document.strip(), _LABEL.sub("", first).strip()
    return text, None


def _is_request(line: str) -> bool:
    """Whether a line or paragraph asks for something, and is no part of a document."""
    line = line.strip()
    if not line or len(line) > _LONGEST_QUESTION:
        return False
    if _LABEL.match(line):
        return True
    asks = line.endswith("?") and not line.endswith(("”?", '"?'))
    return (asks and is_question(line)) or _INSTRUCTION.match(line) is not None
