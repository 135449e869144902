"""The one who works: reads documents in the background and answers, one call of the model at a time.

Answers go first: between two windows a reading lets them pass.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteriaList, TextStreamer

from ..engines import Seq2SeqEngine
from ..errors import UnlimiformerError
from ..memory.memory import Memory
from ..model import Unlimiformer
from ..qa import DocumentQA, QuestionFormat
from .documents import DocumentStore, StoredDocument
from .limits import Limits

_OPEN = 8  # memories that are kept mapped
_SHORT = 48  # tokens of a short answer, with its question


class CancelledError(Exception):
    """Someone wanted it to stop."""


class PriorityLock:
    """Who may use the model: one at a time, and a reading only while no answer waits."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._busy, self._waiting = False, 0

    @contextmanager
    def answering(self, cancelled: threading.Event) -> Iterator[None]:
        """For an answer; one that is cancelled while it waits gets no turn."""
        with self._free:
            self._waiting += 1
            try:
                while self._busy:
                    if cancelled.is_set():
                        raise CancelledError
                    self._free.wait(0.2)
                if cancelled.is_set():
                    raise CancelledError
                self._busy = True
            finally:
                self._waiting -= 1
                self._free.notify_all()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """For a reading."""
        self._enter_as_reader()
        try:
            yield
        finally:
            self._leave()

    def yield_to_answers(self) -> None:
        """A reading lets all answers that wait go first."""
        if self._waiting:
            self._leave()
            self._enter_as_reader()

    def _enter_as_reader(self) -> None:
        with self._free:
            self._free.wait_for(lambda: not self._busy and not self._waiting)
            self._busy = True

    def _leave(self) -> None:
        with self._free:
            self._busy = False
            self._free.notify_all()


@dataclass(frozen=True)
class ServedAnswer:
    """A text, where it came from, the plain model's answer if it was wanted, and why it ended before its end."""

    text: str
    provenance: dict[str, Any] | None
    truncated: str | None
    seconds: float
    stopped: str | None = None


class BackgroundWorker:
    """A wrapped model and the documents that it reads; `close` ends its thread.

    `beams`: a short answer of an encoder–decoder, in which a digit may be lost, is written once more with so many.
    """

    def __init__(
        self, wrapped: Unlimiformer, asking: QuestionFormat, library: DocumentStore, limits: Limits, beams: int = 1
    ) -> None:
        self.wrapped, self.asking, self.library, self.limits = wrapped, asking, library, limits
        self._beams = beams if isinstance(wrapped.engine, Seq2SeqEngine) else 1
        self._turns = PriorityLock()
        self._open: OrderedDict[str, Memory] = OrderedDict()
        self._opening = threading.Lock()
        self._progress: dict[str, tuple[int, int]] = {}
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._read_all, name="reader", daemon=True)
        self._thread.start()

    @property
    def context_length(self) -> int:
        """How many tokens the plain model sees."""
        return self.wrapped.engine.context_length

    def close(self) -> None:
        """Ends; what is being read goes on at the next start."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def added(self) -> None:
        """There is something to read."""
        self._wake.set()

    def progress(self, document: StoredDocument) -> tuple[int, int]:
        """Windows of a document that are read, and all; (0, 0) before it begins."""
        return self._progress.get(document.id, (0, 0))

    def answer(
        self,
        document: StoredDocument,
        question: str | None,
        log: Callable[[str], None],
        cancelled: threading.Event,
        compare: bool = False,
        new_tokens: int | None = None,
    ) -> ServedAnswer:
        """Writes an answer, telling its text as it comes; ends early if it is cancelled or takes too long."""
        length = min(new_tokens or self.limits.new_tokens, self.limits.new_tokens)
        greedy: dict[str, Any] = {"max_new_tokens": length, "do_sample": False, "num_beams": 1}
        with self._turns.answering(cancelled):
            started = time.perf_counter()
            memory = self._memory(document)
            talk = DocumentQA(self.wrapped, memory, self.asking)
            stop, mending, comparing = (_Stop(cancelled, started + self.limits.seconds) for _ in range(3))
            known = memory.offsets is not None and self.wrapped.engine.supports_provenance
            streamer = _Streamer(self.wrapped.tokenizer, log)
            reply = talk.ask(question, provenance=known, streamer=streamer, **greedy, **stop.told)
            if self._beams > 1 and reply.output.token_ids.shape[0] <= _SHORT and not stop.why:
                again = {**greedy, "num_beams": self._beams}
                mended = talk.ask(question, provenance=known, **again, **mending.told)
                reply = reply if mending.why else mended
            plain = talk.truncated(question, **greedy, **comparing.told) if compare and not stop.why else None
            seconds = time.perf_counter() - started
        looked = reply.output.provenance
        told = None if looked is None else looked.told()
        return ServedAnswer(reply.text.strip(), told, plain, seconds, stop.why)

    def _memory(self, document: StoredDocument) -> Memory:
        with self._opening:
            found = self._open.pop(document.id, None)
            self._open[document.id] = found or Memory.load(self.library.memory_path(document), verify=False)
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)
            return self._open[document.id]

    def forget(self, document: StoredDocument) -> None:
        """Lets go of a document that was removed."""
        with self._opening:
            self._open.pop(document.id, None)
        self._progress.pop(document.id, None)

    def _read_all(self) -> None:
        """Documents that wait, one after the other; first those are found that another model has read."""
        for document in self.library.documents():
            if document.state == "ready" and not self._can_be_asked(document):
                self.library.update(document.id, state="waiting")
        while not self._closing.is_set():
            waiting = next((each for each in self.library.documents() if each.state == "waiting"), None)
            if waiting is None:
                self._wake.wait()
                self._wake.clear()
                continue
            try:
                self._read(waiting)
            except OSError:  # the disk is full: it may have room later
                self._closing.wait(5)

    def _can_be_asked(self, document: StoredDocument) -> bool:
        try:
            self.wrapped.engine.reader.check(self._memory(document))
        except UnlimiformerError:
            return False
        return True

    def _read(self, document: StoredDocument) -> None:
        def note(done: int, of: int) -> None:
            self._progress[document.id] = (done, of)
            if self._closing.is_set() or self.library.get(document.id) is None:
                raise CancelledError
            self._turns.yield_to_answers()

        try:
            with self._turns.reading():
                self.library.update(document.id, state="reading")
                if self.library.get(document.id) is None:
                    return
                self._progress.pop(document.id, None)
                memory = self._indexed(document, note)
            self.library.update(document.id, state="ready", tokens=len(memory))
        except CancelledError:
            self.library.update(document.id, state="waiting")
        except OSError:
            self.library.update(document.id, state="waiting")
            raise
        except Exception as error:  # a reader that dies would leave all others waiting
            message = str(error) if isinstance(error, UnlimiformerError) else f"{type(error).__name__}: {error}"
            self.library.update(document.id, state="failed", error=message)
        finally:
            if self.library.get(document.id) is None:
                shutil.rmtree(self.library.memory_path(document).parent, ignore_errors=True)

    def _indexed(self, document: StoredDocument, note: Callable[[int, int], None]) -> Memory:
        """Goes on with what was begun; a memory that another model made is replaced."""
        text, folder = self.library.text_path(document), self.library.memory_path(document)
        try:
            return self.wrapped.index(text, folder=folder, progress=note)
        except UnlimiformerError:
            return self.wrapped.index(text, folder=folder, progress=note, overwrite=True)


class _Stop:
    """Ends a generation that was cancelled, or that takes too long."""

    def __init__(self, cancelled: threading.Event, deadline: float) -> None:
        self._cancelled, self._deadline = cancelled, deadline
        self.why: str | None = None

    @property
    def told(self) -> dict[str, Any]:
        """For `generate`."""
        return {"stopping_criteria": StoppingCriteriaList([self])}  # type: ignore[list-item]

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        if self._cancelled.is_set():
            self.why = "cancelled"
        elif time.perf_counter() > self._deadline:
            self.why = "out of time"
        return torch.full((input_ids.shape[0],), self.why is not None, device=input_ids.device, dtype=torch.bool)


class _Streamer(TextStreamer):
    """Tells the text as it comes."""

    def __init__(self, tokenizer: Any, log: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._say = log

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Called with whole words."""
        if text:
            self._say(text)
