"""What a batch run does with each document: the task, the model and their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..config import UnlimiformerConfig
from ..errors import InputError
from ..hub import MODELS
from ..memory.remote import is_url
from .documents import Document

TASKS = ("summarize", "ask", "index")
_MAX_BATCH_BYTES = 200_000  # total size of the documents that are answered in one call
_NOT_IN_IDENTITY = ("device", "batch_size", "memories", "relative_to", "config", "generation")

ResultRow = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One task for all documents of a run.

    Parameters
    ----------
    task : "summarize", "ask" or "index".
    model : name of a known model, or folder of a saved one.
    config : fields of `UnlimiformerConfig`.
    generation : arguments of `generate`.
    questions : asked about every document, after the document's own questions.
    summary_prompt : what is asked for a summary; None as the model was trained.
    passages : number of source passages stored with each answer.
    memories : task "index": folder or URL for the memories.
    relative_to : folder from which the rows name the memories' folders.
    batch_size : maximum number of documents answered in one call.
    device : where the model runs; None chooses.
    """

    task: str
    model: str
    config: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    questions: tuple[str, ...] = ()
    summary_prompt: str | None = None
    passages: int = 1
    memories: str | None = None
    relative_to: str | None = None
    batch_size: int = 8
    device: str | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"the task is {self.task!r}; expected one of: {', '.join(TASKS)}")
        if self.questions and self.task != "ask":
            raise InputError(f"questions were given with task {self.task!r}; expected task 'ask'")
        if self.summary_prompt is not None and self.task != "summarize":
            raise InputError(f"a summary prompt was given with task {self.task!r}; expected task 'summarize'")
        if self.task == "index" and self.memories is None:
            raise InputError("task 'index' was given without a place for memories; expected a folder or a URL")
        if any(not question.strip() for question in self.questions):
            raise InputError("a question is empty; expected a non-empty text")
        if self.batch_size < 1 or self.passages < 0:
            raise InputError("batch_size must be at least 1 and passages at least 0")
        UnlimiformerConfig(**self.config)
        # Paths are made absolute because workers may run in another folder.
        if self.memories is not None and not is_url(self.memories):
            object.__setattr__(self, "memories", str(Path(self.memories).absolute()))
        if self.model not in MODELS and Path(self.model).is_dir():
            object.__setattr__(self, "model", str(Path(self.model).absolute()))

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the rows, by name."""
        fields = {name: value for name, value in asdict(self).items() if name not in _NOT_IN_IDENTITY}
        config = {name: value for name, value in self.config.items() if name != "batch_size"}
        return {**fields, **config, **self.generation}

    def questions_for(self, document: Document) -> tuple[str | None, ...]:
        """Return the questions about a document; None stands for a summary."""
        if self.task == "summarize":
            return (None,)
        return tuple(dict.fromkeys((*document.questions, *self.questions)))

    def count_batch(self, queue: Sequence[Document]) -> int:
        """Count the documents at the head of a queue that one call should answer: short, and with equal questions."""
        if self.task == "index":
            return 1
        first, size = queue[0], 0
        for count, document in enumerate(queue[: self.batch_size]):
            size += document.size
            if count and (size > _MAX_BATCH_BYTES or not self._share_call(first, document)):
                return count
        return min(self.batch_size, len(queue))

    def _share_call(self, first: Document, second: Document) -> bool:
        """Whether one call can answer both: equal questions, and both texts or both memories."""
        same_kind = (first.memory is None) == (second.memory is None)
        return same_kind and self.questions_for(first) == self.questions_for(second)


def failure_row(document: Document, reason: str) -> ResultRow:
    """Return the row of a document that could not be processed."""
    return {"id": document.id, "digest": document.digest, "error": reason}
