"""Questions and summaries about documents, for every kind of model."""

from ..engines.question_format import PLACES, SUMMARY_PROMPT, QuestionFormat
from .conversation import Conversation
from .document import Answer, DocumentQA, SentenceStream, answer_batch
from .messages import ChatRequest, Message, Turn

__all__ = [
    "PLACES",
    "SUMMARY_PROMPT",
    "Answer",
    "ChatRequest",
    "Conversation",
    "DocumentQA",
    "Message",
    "QuestionFormat",
    "SentenceStream",
    "Turn",
    "answer_batch",
]
