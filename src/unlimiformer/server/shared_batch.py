"""Questions of different people that wait at the same time are answered in one batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .priority_lock import CancelledError, PriorityLock

_GATHER_SECONDS = 0.05  # for which the first question waits for others
_POLL_SECONDS = 0.2


@dataclass
class WaitingQuestion:
    """A question, and later its answer or error. `settings` must be equal for questions of one batch."""

    question: Any
    settings: Any
    cancelled: threading.Event
    taken: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    answer: Any = None
    error: BaseException | None = None

    def is_set(self) -> bool:
        """Whether it need not wait for the model any more; makes it the event that ends waiting for the lock."""
        return self.taken.is_set() or self.cancelled.is_set()


class SharedBatch:
    """Answers questions in batches: who gets the model answers all that wait and fit.

    Parameters
    ----------
    lock : of the model.
    answer_all : answers some questions that have the same settings.
    most : questions in one batch.
    """

    def __init__(self, lock: PriorityLock, answer_all: Callable[[list[Any], Any], list[Any]], most: int = 8) -> None:
        self._lock, self._answer_all, self._most = lock, answer_all, most
        self._waiting: list[WaitingQuestion] = []
        self._guard = threading.Lock()

    def answer(self, question: Any, settings: Any, cancelled: threading.Event) -> Any:
        """The answer to a question; raise `CancelledError` if it is cancelled before it begins."""
        waiting = WaitingQuestion(question, settings, cancelled)
        with self._guard:
            self._waiting.append(waiting)
        try:
            with self._lock.for_answer(waiting):
                if not waiting.taken.is_set():
                    time.sleep(_GATHER_SECONDS)
                    self._answer_waiting(waiting)
        except CancelledError:
            with self._guard:
                if not waiting.taken.is_set():
                    self._waiting.remove(waiting)
                    raise
        while not waiting.answered.wait(_POLL_SECONDS):
            if cancelled.is_set():
                raise CancelledError
        if waiting.error is not None:
            raise waiting.error
        return waiting.answer

    def _answer_waiting(self, first: WaitingQuestion) -> None:
        """Answer a question together with others that wait; the caller holds the model's lock."""
        with self._guard:
            fitting = [other for other in self._waiting if other.settings == first.settings and other is not first]
            batch = [first, *fitting[: self._most - 1]]
            for waiting in batch:
                self._waiting.remove(waiting)
                waiting.taken.set()
        batch = [waiting for waiting in batch if not waiting.cancelled.is_set()]
        try:
            self._answer_batch(batch)
        finally:
            for waiting in batch:
                waiting.answered.set()

    def _answer_batch(self, batch: list[WaitingQuestion]) -> None:
        """Answer some questions; if they fail together, each alone, so that one cannot fail the others."""
        if not batch:
            return
        try:
            answers = self._answer_all([waiting.question for waiting in batch], batch[0].settings)
            for waiting, answer in zip(batch, answers, strict=True):
                waiting.answer = answer
        except Exception as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            for waiting in batch:
                self._answer_batch([waiting])
