"""Questions and summaries about documents, for every kind of model."""

from .document import Answer, DocumentQA, answer_batch
from .question_format import PLACES, SUMMARY_PROMPT, QuestionFormat

__all__ = ["PLACES", "SUMMARY_PROMPT", "Answer", "DocumentQA", "QuestionFormat", "answer_batch"]
