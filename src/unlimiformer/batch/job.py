"""What a run does with each document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..config import UnlimiformerConfig
from ..errors import UnlimiformerError
from ..hub import MODELS
from ..memory.remote import is_url
from .documents import Document

TASKS = ("summarize", "ask", "index")
_TOGETHER_BYTES = 200_000  # of the texts that are answered in one call
_DECIDES_NOTHING = ("device", "batch_size", "memories", "relative_to", "config", "generation")

ResultRow = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One task for all documents. `config` has the wrapper's settings, `generation` what `generate` is given.

    `questions` are asked about every document, after its own. `passages`: so many of those that an answer came from are
    kept with it. `memories`: folder or URL of what `index` makes; rows name those in a folder as seen from
    `relative_to`. `batch_size`: documents that are answered in one call.
    """

    task: str
    model: str
    config: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    questions: tuple[str, ...] = ()
    passages: int = 1
    memories: str | None = None
    relative_to: str | None = None
    batch_size: int = 8
    device: str | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UnlimiformerError(f"the task is {self.task!r}; expected one of: {', '.join(TASKS)}")
        if self.questions and self.task != "ask":
            raise UnlimiformerError(f"questions were given with task {self.task!r}; expected task 'ask'")
        if self.task == "index" and self.memories is None:
            raise UnlimiformerError("task 'index' was given without a place for memories; expected a folder or a URL")
        if any(not question.strip() for question in self.questions):
            raise UnlimiformerError("a question is empty; expected some words")
        if self.batch_size < 1 or self.passages < 0:
            raise UnlimiformerError("batch_size must be at least 1 and passages at least 0")
        UnlimiformerConfig(**self.config)
        if self.memories is not None and not is_url(self.memories):  # workers may stand elsewhere
            object.__setattr__(self, "memories", str(Path(self.memories).absolute()))
        if self.model not in MODELS and Path(self.model).is_dir():
            object.__setattr__(self, "model", str(Path(self.model).absolute()))

    def identity(self) -> dict[str, Any]:
        """What decides the rows, by name."""
        settings = {name: value for name, value in self.config.items() if name != "batch_size"}
        own = {name: value for name, value in asdict(self).items() if name not in _DECIDES_NOTHING}
        return {**own, **settings, **self.generation}

    def asked(self, document: Document) -> tuple[str | None, ...]:
        """The questions about a document; None: to summarise it."""
        return (None,) if self.task == "summarize" else tuple(dict.fromkeys((*document.questions, *self.questions)))

    def batch(self, waiting: Sequence[Document]) -> int:
        """How many of the documents that wait, longest first, are done together: as many as are alike and short."""
        first, size = waiting[0], 0
        if self.task == "index":
            return 1
        for count, document in enumerate(waiting[: self.batch_size]):
            alike = (self.asked(document), document.memory is None) == (self.asked(first), first.memory is None)
            size += document.size
            if count and (not alike or size > _TOGETHER_BYTES):
                return count
        return min(self.batch_size, len(waiting))


def failure(document: Document, reason: str) -> ResultRow:
    """The row of a document that could not be done."""
    return {"id": document.id, "digest": document.digest, "error": reason}
