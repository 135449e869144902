"""Answer questions about documents, which a background thread indexes.

One model serves both, one call at a time. Between two windows, indexing yields to answers that wait.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakValueDictionary

from ..engines.answer_end import answer_tokens
from ..errors import InputError
from ..memory.join import document_starts, join_memories
from ..memory.memory import Memory
from ..model import Unlimiformer
from ..provenance import Provenance
from ..qa import DocumentQA, QuestionFormat, Turn, answer_batch
from ..qa.conversation import standalone_question
from ..summaries import summary_words
from ..text.document_text import DocumentText
from ..text.questions import asks_for_summary, is_broad
from .answers import CallbackStreamer, ServedAnswer, StopSignal
from .documents import DocumentStore, StoredDocument
from .indexing import BackgroundIndexer
from .limits import Limits
from .open_memories import OpenMemories
from .priority_lock import CancelledError, PriorityLock
from .shared_batch import SharedBatch

_SHORT_ANSWER = 48  # tokens, with the question
_BATCH = 8  # questions of different people that are answered together
_CPU_BATCH = 4  # a processor reads four prompts in four times the time of one: more would delay the first
_POLL_SECONDS = 0.2  # how often a waiting summary checks whether it was cancelled


@dataclass(frozen=True)
class _Asked:
    """A question about some documents, and what was asked before it."""

    documents: list[StoredDocument]
    question: str
    turns: tuple[Turn, ...]


class BackgroundWorker:
    """Index waiting documents in a thread and answer questions about those that are ready.

    Parameters
    ----------
    wrapped : the model
    question_format : how the model expects its questions
    documents : the documents to index and to answer from
    limits : time and length of one answer
    beams : a short answer of an encoder–decoder is generated a second time with this many beams, since greedy search
        may drop a digit; 1 turns this off
    retry_seconds : pause after the disk refused a write, before indexing goes on
    """

    def __init__(
        self,
        wrapped: Unlimiformer,
        question_format: QuestionFormat,
        documents: DocumentStore,
        limits: Limits,
        *,
        beams: int = 1,
        retry_seconds: float = 5.0,
    ) -> None:
        self.wrapped, self.question_format = wrapped, question_format
        self.documents, self.limits = documents, limits
        self.model_lock = PriorityLock()
        self._beams = beams if wrapped.engine.kind == "encoder-decoder" else 1
        self._memories = OpenMemories(documents)
        self._summary_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # while they are used
        self._summary_guard, self._closing = threading.Lock(), threading.Event()
        self._described: tuple[int, list[dict[str, Any]]] = (-1, [])
        most = _CPU_BATCH if wrapped.engine.device.type == "cpu" else _BATCH
        self._facts = SharedBatch(self.model_lock, self._answer_facts, most)
        self._indexer = BackgroundIndexer(wrapped, documents, self._memories, self.model_lock, retry_seconds)

    @property
    def context_length(self) -> int:
        """Number of tokens that the plain model can attend to."""
        return self.wrapped.engine.context_length

    @property
    def health(self) -> dict[str, Any]:
        """Whether documents are being indexed, how often indexing had to be started again, and why the last time."""
        return self._indexer.health

    def close(self) -> None:
        """Stop; a document that is being indexed continues at the next start."""
        self._closing.set()
        self._indexer.close()

    def add(self, name: str, content: DocumentText) -> StoredDocument:
        """Store a document, which is then indexed in the background."""
        document = self.documents.add(name, content, self.limits.documents)
        self.wake_up()
        return document

    def remove(self, document: StoredDocument) -> None:
        """Delete a document and its memory."""
        self.documents.remove(document.id)
        self.forget(document)

    def wake_up(self) -> None:
        """Look for waiting documents; call it after adding one to `documents`."""
        self._indexer.wake_up()

    def progress(self, document: StoredDocument) -> tuple[int, int]:
        """Return how many windows of a document are indexed, and their total; (0, 0) before indexing begins."""
        return self._indexer.progress(document)

    def describe(self, document: StoredDocument) -> dict[str, Any]:
        """A document with its progress, for JSON."""
        done, total = self.progress(document)
        return {**asdict(document), "done": done, "of": total}

    def describe_all(self) -> list[dict[str, Any]]:
        """All documents with their progress; made once for all who watch."""
        count = self.documents.changes.count
        if self._described[0] != count:
            self._described = count, [self.describe(document) for document in self.documents.all()]
        return self._described[1]

    def forget(self, document: StoredDocument) -> None:
        """Drop what is cached for a document that was removed from `documents`."""
        self._indexer.forget(document)

    def open_memory(self, document: StoredDocument) -> Memory:
        """The memory of a document that is ready; the most recently used ones stay open."""
        return self._memories.get(document)

    @contextmanager
    def while_kept(self, documents: Sequence[StoredDocument]) -> Iterator[None]:
        """Raise `InputError` at the end, in place of any other error, if one of the documents was deleted meanwhile."""
        try:
            yield
        except Exception:
            self._check_kept(documents)
            raise
        self._check_kept(documents)

    def _check_kept(self, documents: Sequence[StoredDocument]) -> None:
        for document in documents:
            if self.documents.get(document.id) is None:
                raise InputError(f"{document.name} was deleted while it was asked; add it again to ask about it")

    def answer(
        self,
        document: StoredDocument | Sequence[StoredDocument],
        question: str | None,
        on_text: Callable[[str], None],
        cancelled: threading.Event,
        *,
        compare: bool = False,
        new_tokens: int | None = None,
        turns: Sequence[Turn] = (),
    ) -> ServedAnswer:
        """Answer a question about a document or several, or summarise one if there is no question.

        Parameters
        ----------
        on_text : called with each new piece of the answer
        cancelled : stops the answer when set; raises `CancelledError` if it had not begun
        compare : also let the plain model answer from the truncated document
        new_tokens : length of the answer, up to that of the limits; by default it follows the question
        turns : what was asked before, to which the question may refer
        """
        documents = [document] if isinstance(document, StoredDocument) else list(document)
        with self.while_kept(documents):
            return self._answer(documents, question, on_text, cancelled, compare, new_tokens, turns)

    def _answer(
        self,
        documents: list[StoredDocument],
        question: str | None,
        on_text: Callable[[str], None],
        cancelled: threading.Event,
        compare: bool,
        new_tokens: int | None,
        turns: Sequence[Turn],
    ) -> ServedAnswer:
        length = min(new_tokens or answer_tokens([question]), self.limits.new_tokens)
        if self.wrapped.engine.kind == "decoder-only" and asks_for_summary(question) and len(documents) == 1:
            return self._summarize(documents[0], question, on_text, cancelled, compare, length)
        if self.wrapped.engine.kind == "decoder-only" and not is_broad(question) and not compare:
            fact = self._facts.answer(_Asked(documents, str(question), tuple(turns)), length, cancelled)
            on_text(fact.text)
            return fact
        greedy: dict[str, Any] = {"max_new_tokens": length, "do_sample": False, "num_beams": 1}
        with self.model_lock.for_answer(cancelled):
            started = time.perf_counter()
            stop, beam_stop, plain_stop = (StopSignal(cancelled, started + self.limits.seconds) for _ in range(3))
            memory, places = self._open_together(documents)
            asked = None if question is None else standalone_question(question, turns, self.wrapped)
            understood, question = (None if asked == question else asked), asked
            qa = DocumentQA(self.wrapped, memory, self.question_format)
            traced = memory.offsets is not None and self.wrapped.engine.supports_provenance
            streamer = CallbackStreamer(self.wrapped.tokenizer, on_text)
            answer = qa.ask(question, provenance=traced, streamer=streamer, stopping_criteria=stop.criteria, **greedy)
            if self._beams > 1 and answer.output.token_ids.shape[0] <= _SHORT_ANSWER and not stop.reason:
                beam_search = {**greedy, "num_beams": self._beams, "stopping_criteria": beam_stop.criteria}
                beam_answer = qa.ask(question, provenance=traced, **beam_search)
                answer = answer if beam_stop.reason else beam_answer
            truncated = None
            if compare and not stop.reason:
                stopping = {"stopping_criteria": plain_stop.criteria}
                truncated = qa.ask_truncated(question, qa.first_window, **stopping, **greedy)
            seconds = time.perf_counter() - started
        provenance = None if answer.output.provenance is None else answer.output.provenance.to_dict()
        return ServedAnswer(answer.text.strip(), provenance, truncated, seconds, stop.reason, understood, places)

    def _answer_facts(self, asked: list[_Asked], length: int) -> list[ServedAnswer]:
        """Answer questions of different people in one batch."""
        started = time.perf_counter()
        stop = StopSignal(self._closing, started + self.limits.seconds)
        opened = [self._open_together(question.documents) for question in asked]
        questions = [standalone_question(item.question, item.turns, self.wrapped) for item in asked]
        memories = [memory for memory, _ in opened]
        traced = self.wrapped.engine.supports_provenance and all(memory.offsets is not None for memory in memories)
        settings: dict[str, Any] = {"max_new_tokens": length, "do_sample": False, "num_beams": 1, "provenance": traced}
        answers = answer_batch(
            self.wrapped, memories, questions, self.question_format, stopping_criteria=stop.criteria, **settings
        )
        seconds = time.perf_counter() - started
        return [
            ServedAnswer(
                answer.text.strip(),
                None if answer.output.provenance is None else answer.output.provenance.to_dict(),
                None,
                seconds,
                stop.reason,
                None if question == item.question else question,
                places,
            )
            for answer, question, item, (_, places) in zip(answers, questions, asked, opened, strict=True)
        ]

    def _open_together(self, documents: Sequence[StoredDocument]) -> tuple[Memory, tuple[dict[str, Any], ...]]:
        """One memory of some documents, and where each begins in its text if there are several."""
        memories = [self.open_memory(document) for document in documents]
        starts = document_starts([memory.text for memory in memories]) if len(memories) > 1 else []
        places = tuple({"id": document.id, "start": start} for document, start in zip(documents, starts, strict=False))
        return join_memories(memories, [document.name for document in documents]), places

    def _summarize(
        self,
        document: StoredDocument,
        question: str | None,
        on_text: Callable[[str], None],
        cancelled: threading.Event,
        compare: bool,
        length: int,
    ) -> ServedAnswer:
        """Summarise a document section by section; between sections, answers to others come first.

        What is written is kept with the document, so that a cancelled summary continues when it is asked for again.
        """

        def check() -> None:
            if cancelled.is_set() or self._closing.is_set() or self.documents.get(document.id) is None:
                raise CancelledError

        def on_progress(done: int, total: int) -> None:
            del done, total
            check()
            self.model_lock.yield_summary(cancelled)

        greedy: dict[str, Any] = {"do_sample": False, "num_beams": 1}
        truncated = None
        folder = self.documents.memory_path(document).parent
        with self._summary_of(document, cancelled), self.model_lock.for_summary(cancelled):
            check()
            started = time.perf_counter()
            memory = self.open_memory(document)
            summary = self.wrapped.summarize(
                memory,
                words=summary_words(length),
                question_format=self.question_format,
                folder=folder / "summary",
                progress=on_progress,
                on_part=lambda part: on_text(f"{part.text} "),
                **greedy,
            )
            if compare:
                qa = DocumentQA(self.wrapped, memory, self.question_format)
                stop = StopSignal(cancelled, time.perf_counter() + self.limits.seconds)
                settings = {**greedy, "max_new_tokens": length, "stopping_criteria": stop.criteria}
                truncated = qa.ask_truncated(question, qa.first_window, **settings)
        found = None if memory.offsets is None else Provenance.from_sentences(memory, summary.spans).to_dict()
        return ServedAnswer(summary.text, found, truncated, time.perf_counter() - started)

    @contextmanager
    def _summary_of(self, document: StoredDocument, cancelled: threading.Event) -> Iterator[None]:
        """Let one summary of a document be written at a time; remove what is left of a document that was deleted."""
        with self._summary_guard:
            lock = self._summary_locks.setdefault(document.id, threading.Lock())
        while not lock.acquire(timeout=_POLL_SECONDS):
            if cancelled.is_set():
                raise CancelledError
        try:
            yield
        finally:
            lock.release()
            if self.documents.get(document.id) is None:
                shutil.rmtree(self.documents.memory_path(document).parent, ignore_errors=True)
