"""Questions and summaries about documents, for every kind of model."""

from ..engines.question_format import PLACES, SUMMARY_PROMPT, QuestionFormat
from .document import Answer, DocumentQA, SentenceStream, answer_batch

__all__ = [
    "PLACES",
    "SUMMARY_PROMPT",
    "Answer",
    "DocumentQA",
    "QuestionFormat",
    "SentenceStream",
    "answer_batch",
]
