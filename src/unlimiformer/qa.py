"""Questions and summaries about one document, for every kind of model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import InputError
from .hub import MODELS, find_model
from .hub.saved_settings import load_saved_settings
from .memory import Memory
from .memory.encode import Progress
from .model import Output, Unlimiformer
from .text.sources import as_token_ids, iter_text

PLACES = ("window", "decoder")


@dataclass(frozen=True)
class QuestionFormat:
    """How a model is given a question.

    A decoder-only model gets the question behind the document, as it is; `place` and `form` are for encoder–decoders.

    Parameters
    ----------
    place : "window" puts the question before every window; "decoder" at the beginning of the decoder's text, so that
        one memory serves every question.
    form : a template with {question} in it.
    summary : what is asked for a summary.
    """

    place: str = "window"
    form: str = "{question}\n"
    summary: str = "Summarize the text."

    def __post_init__(self) -> None:
        if self.place not in PLACES:
            raise InputError(f"the question's place is {self.place!r}; expected one of: {', '.join(PLACES)}")
        try:
            example = self.form.format(question="?!")
        except (KeyError, IndexError, ValueError):
            example = ""
        if "?!" not in example:
            raise InputError(f"the form of questions is {self.form!r}; expected some text with {{question}} in it")

    @classmethod
    def from_folder(cls, folder: str | Path) -> QuestionFormat | None:
        """The format that a model in this folder was trained with; None if the folder does not say."""
        fields = load_saved_settings(folder).get("asking")
        if fields is None:
            return None
        try:
            return cls(**fields)
        except TypeError:
            raise InputError(
                f"{folder}: the question format {fields!r} cannot be used; expected place, form and summary"
            ) from None

    @classmethod
    def for_model(cls, name: str) -> QuestionFormat:
        """The format of a model: as it was trained, as the registry says, or the plain question."""
        form = MODELS[name].question if name in MODELS else "{question}\n"
        return cls.from_folder(find_model(name) or name) or cls(form=form)

    def text(self, question: str | None) -> str:
        """The question in its template; None asks for a summary."""
        return self.form.format(question=self.summary if question is None else question)

    def prompt(self, question: str | None, wrapped: Unlimiformer) -> str:
        """The prompt for a model that has a memory of the document."""
        if wrapped.engine.kind == "encoder-decoder" and self.place == "decoder":
            return self.text(question)
        return self.summary if question is None else question


@dataclass(frozen=True)
class Answer:
    """An answer without its prompt, the output it is part of, and how long indexing and answering took."""

    text: str
    output: Output
    index_seconds: float
    answer_seconds: float

    def quotes(self, count: int) -> list[dict[str, Any]]:
        """At most `count` passages that the answer came from, with their text; none without provenance."""
        provenance = self.output.provenance
        passages = [] if provenance is None else provenance.passages(count)
        text = self.output.memory.text if passages else ""
        return [{**vars(passage), "text": text[passage.start : passage.end]} for passage in passages]


@dataclass
class DocumentQA:
    """A document (a string, a path, pieces of text, or a memory) and a model that answers questions about it.

    The document is indexed once, unless questions stand before every window: then it is indexed for each question.
    """

    wrapped: Unlimiformer
    source: Any
    question_format: QuestionFormat = field(default_factory=QuestionFormat)

    def __post_init__(self) -> None:
        self._memory: Memory | None = self.source if isinstance(self.source, Memory) else None
        self._question_before_windows = (
            self.wrapped.engine.kind == "encoder-decoder"
            and self._memory is None
            and self.question_format.place == "window"
        )
        if as_token_ids(self.source) is not None:
            raise InputError("token ids were given; expected a text that can be asked about, or its memory")
        self._text = "".join(iter_text(self.source)) if self._memory is None else ""
        self._index_seconds = 0.0

    @property
    def context_length(self) -> int:
        """Number of input tokens that the model without this library sees."""
        return self.wrapped.engine.context_length

    @property
    def question_in_decoder(self) -> bool:
        """Whether an encoder–decoder has a memory of the text, and only its decoder is given the question."""
        return self.wrapped.engine.kind == "encoder-decoder" and not self._question_before_windows

    def ask(self, question: str | None, progress: Progress | None = None, **generation: Any) -> Answer:
        """Answer from the whole document; without a question, summarise it.

        `progress` is called while the document is indexed.
        """
        memory = self._index(question, progress)
        prompt = None if self._question_before_windows else self.question_format.prompt(question, self.wrapped)
        started = time.perf_counter()
        output = self.wrapped.generate(memory, prompt=prompt, **generation)
        return Answer(output.answer, output, self._index_seconds, time.perf_counter() - started)

    def ask_truncated(self, question: str | None, **generation: Any) -> str:
        """The plain model's answer from as much of the document as its context holds."""
        text = self.source.text if isinstance(self.source, Memory) else self._text
        if self._question_before_windows:
            text, prompt = self.question_format.text(question) + text, None
        else:
            prompt = self.question_format.prompt(question, self.wrapped)
        return self.wrapped.engine.truncated_generate([text], [prompt], generation)[0]

    def _index(self, question: str | None, progress: Progress | None) -> Memory:
        if self._memory is None or self._question_before_windows:
            started = time.perf_counter()
            prefix = self.question_format.text(question) if self._question_before_windows else None
            self._memory = self.wrapped.index(self._text, prefix=prefix, progress=progress)
            self._index_seconds = time.perf_counter() - started
        return self._memory


def answer_batch(
    wrapped: Unlimiformer,
    sources: Sequence[Any],
    questions: Sequence[str | None],
    question_format: QuestionFormat,
    **generation: Any,
) -> list[Answer]:
    """Answer one question about each of several texts, or of several memories, in one call; None asks for a summary.

    Questions in the decoder must all have the same number of tokens. The time is shared equally among the answers.
    """
    question_before_windows = (
        wrapped.engine.kind == "encoder-decoder"
        and question_format.place == "window"
        and not any(isinstance(source, Memory) for source in sources)
    )
    arguments: dict[str, Any]
    if question_before_windows:
        arguments = {"prefix": [question_format.text(question) for question in questions]}
    else:
        arguments = {"prompt": [question_format.prompt(question, wrapped) for question in questions]}
    started = time.perf_counter()
    outputs = wrapped.generate(list(sources), **arguments, **generation)
    seconds = (time.perf_counter() - started) / len(sources)
    return [Answer(output.answer, output, 0.0, seconds) for output in outputs]
