"""Questions and summaries about one document, for every kind of model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..engines.answer_end import AnswerEnd, answer_tokens
from ..engines.question_format import QuestionFormat
from ..errors import InputError
from ..memory import Memory
from ..memory.encode import Progress
from ..model import Output, Unlimiformer
from ..provenance import Provenance
from ..summaries import ChapterSummary, summary_words
from ..text.document_text import DocumentText
from ..text.questions import asks_for_summary
from ..text.sources import as_token_ids, iter_text, read_document
from ..text.tokenization import truncate_text


@dataclass(frozen=True)
class Answer:
    """An answer without its prompt, the output that it was made of, and how long indexing and answering took."""

    text: str
    output: Output
    index_seconds: float
    answer_seconds: float

    def quotes(self, count: int) -> list[dict[str, Any]]:
        """At most `count` passages that the answer came from, with their text; none without provenance."""
        provenance = self.output.provenance
        passages = [] if provenance is None else provenance.passages(count)
        return self.output.memory.citations.quote(passages) if passages else []


@dataclass
class DocumentQA:
    """A document (a string, a path, pieces of text, or a memory) and a model that answers questions about it.

    The document is indexed once, unless questions stand before its windows: then it is indexed for each question.
    """

    wrapped: Unlimiformer
    source: Any
    question_format: QuestionFormat = field(default_factory=QuestionFormat)

    def __post_init__(self) -> None:
        self._memory: Memory | None = self.source if isinstance(self.source, Memory) else None
        self._question_before_document = (
            self.wrapped.engine.kind == "encoder-decoder"
            and self._memory is None
            and self.question_format.place != "decoder"
        )
        if as_token_ids(self.source) is not None:
            raise InputError("token ids were given; expected a text that can be asked about, or its memory")
        self._document = DocumentText("") if self._memory is not None else read_document(self.source)
        self._index_seconds = 0.0

    @property
    def first_window(self) -> int | None:
        """Tokens of the document in the first window of a decoder-only model; None if the window is all it sees."""
        return self.wrapped.engine.window if self.wrapped.engine.kind == "decoder-only" else None

    @property
    def question_in_decoder(self) -> bool:
        """Whether an encoder–decoder has a memory of the text, and only its decoder is given the question."""
        return self.wrapped.engine.kind == "encoder-decoder" and not self._question_before_document

    def prepare(self, progress: Progress | None = None) -> None:
        """Index the document now, unless it is indexed for each question."""
        if not self._question_before_document:
            self._index(None, progress)

    def ask(self, question: str | None, progress: Progress | None = None, **generation: Any) -> Answer:
        """Answer from the whole document; without a question, summarise it.

        `progress` is called while the document is indexed. A decoder-only model summarises section by section, as
        `Unlimiformer.summarize` does.
        """
        memory = self._index(question, progress)
        has_text = memory.stored_text is not None
        if self.wrapped.engine.kind == "decoder-only" and has_text and asks_for_summary(question):
            return self._summarize(memory, question, **generation)
        prompt = None if self._question_before_document else self.question_format.prompt(question, self.wrapped.engine)
        started = time.perf_counter()
        end = AnswerEnd([question], generation, self.wrapped.tokenizer)
        output = self.wrapped.generate(memory, prompt=prompt, **end.generation)
        return Answer(end.text(output.answer), output, self._index_seconds, time.perf_counter() - started)

    def ask_truncated(self, question: str | None, tokens: int | None = None, **generation: Any) -> str:
        """The plain model's answer from as much of the document as its context holds, or from its first `tokens`."""
        text = self.source.text if isinstance(self.source, Memory) else self._document.text
        if tokens is not None:
            text = truncate_text(text, self.wrapped.tokenizer, tokens)
        if self._question_before_document:
            text, prompt = self.question_format.text(question) + text, None
        else:
            prompt = self.question_format.prompt(question, self.wrapped.engine)
        end = AnswerEnd([question], generation, self.wrapped.tokenizer)
        return end.text(self.wrapped.engine.truncated_generate([text], [prompt], end.generation)[0])

    def _summarize(self, memory: Memory, question: str | None, provenance: bool = False, **generation: Any) -> Answer:
        started = time.perf_counter()
        length = generation.pop("max_new_tokens", None) or answer_tokens([question])
        streamer = generation.pop("streamer", None)
        stream = SentenceStream(streamer, self.wrapped.tokenizer)
        summary = self.wrapped.summarize(
            memory,
            words=summary_words(length),
            question_format=self.question_format,
            on_part=stream.put,
            **generation,
        )
        stream.end()
        ids = self.wrapped.tokenizer(summary.text, add_special_tokens=False, return_tensors="pt", verbose=False)
        found = None
        if provenance and memory.offsets is not None:
            found = Provenance.from_sentences(memory, summary.spans)
        output = Output((summary.text,), (summary.text,), ids["input_ids"], memory, 0, found)
        return Answer(summary.text, output, self._index_seconds, time.perf_counter() - started)

    def _index(self, question: str | None, progress: Progress | None) -> Memory:
        if self._memory is None or self._question_before_document:
            started = time.perf_counter()
            asked = self.question_format.text(question) if self._question_before_document else ""
            in_every_window = self.question_format.place == "window"
            document, prefix = self._document, asked or None
            if not in_every_window:
                document, prefix = document.behind(asked), None
            self._memory = self.wrapped.index(document, prefix=prefix, progress=progress)
            self._index_seconds = time.perf_counter() - started
        return self._memory


class SentenceStream:
    """Gives a streamer of transformers the sentences of a summary."""

    def __init__(self, streamer: Any, tokenizer: Any) -> None:
        self._streamer, self._tokenizer = streamer, tokenizer
        if streamer is not None:
            streamer.put(torch.zeros((1, 1), dtype=torch.long))  # stands for the prompt, which is skipped

    def put(self, part: ChapterSummary) -> None:
        """Stream the sentences of a part."""
        if self._streamer is not None:
            for token in self._tokenizer(f"{part.text} ", add_special_tokens=False)["input_ids"]:
                self._streamer.put(torch.tensor([token]))

    def end(self) -> None:
        """Stream what is left."""
        if self._streamer is not None:
            self._streamer.end()


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
    question_before_document = (
        wrapped.engine.kind == "encoder-decoder"
        and question_format.place != "decoder"
        and not any(isinstance(source, Memory) for source in sources)
    )
    arguments: dict[str, Any] = {}
    if question_before_document:
        asked = [question_format.text(question) for question in questions]
        if question_format.place == "first":
            sources = [text + "".join(iter_text(source)) for text, source in zip(asked, sources, strict=True)]
        elif any(asked):
            arguments = {"prefix": asked}
    else:
        arguments = {"prompt": [question_format.prompt(question, wrapped.engine) for question in questions]}
    if wrapped.engine.kind == "decoder-only" and any(map(asks_for_summary, questions)):
        documents = [DocumentQA(wrapped, source, question_format) for source in sources]
        return [document.ask(asked, **generation) for document, asked in zip(documents, questions, strict=True)]
    started = time.perf_counter()
    end = AnswerEnd(questions, generation, wrapped.tokenizer)
    outputs = wrapped.generate(list(sources), **arguments, **end.generation)
    seconds = (time.perf_counter() - started) / len(sources)
    return [Answer(end.text(output.answer), output, 0.0, seconds) for output in outputs]
