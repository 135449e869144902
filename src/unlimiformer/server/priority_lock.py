"""The lock of the model: one thread uses it at a time, and answers have priority over indexing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_POLL_SECONDS = 0.2  # how often a waiting answer checks whether it was cancelled


class Cancelled(Protocol):
    """Tells whether somebody still waits."""

    def is_set(self) -> bool:
        """Whether nobody does."""


class CancelledError(Exception):
    """An answer or the indexing of a document was cancelled."""


class _LostError(Exception):
    """A summary was cancelled while it had given the lock to others."""


class PriorityLock:
    """A lock that a summary obtains only while no answer waits for it, and indexing only while neither does."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._held = False
        self._waiting_answers = self._waiting_summaries = 0

    @property
    def waiting_answers(self) -> int:
        """Number of answers that wait for the lock."""
        return self._waiting_answers

    @property
    def waiting_summaries(self) -> int:
        """Number of summaries that wait for the lock."""
        return self._waiting_summaries

    @contextmanager
    def for_answer(self, cancelled: Cancelled) -> Iterator[None]:
        """Hold the lock for an answer; raise `CancelledError` if `cancelled` is set before the lock is free."""
        with self._condition:
            self._waiting_answers += 1
            try:
                while self._held and not cancelled.is_set():
                    self._condition.wait(_POLL_SECONDS)
                if cancelled.is_set():
                    raise CancelledError
                self._held = True
            finally:
                self._waiting_answers -= 1
                self._condition.notify_all()
        try:
            yield
        finally:
            self._release()

    @contextmanager
    def for_summary(self, cancelled: threading.Event) -> Iterator[None]:
        """Hold the lock for a summary, once no answer holds it or waits for it; raise `CancelledError` if cancelled."""
        self._acquire_for_summary(cancelled)
        held = True
        try:
            yield
        except _LostError:
            held = False
            raise CancelledError from None
        finally:
            if held:
                self._release()

    def yield_summary(self, cancelled: threading.Event) -> None:
        """Let all waiting answers run before a summary continues; call it between sections, holding the lock."""
        if self._waiting_answers:
            self._release()
            try:
                self._acquire_for_summary(cancelled)
            except CancelledError:
                raise _LostError from None

    @contextmanager
    def for_indexing(self) -> Iterator[None]:
        """Hold the lock for indexing, once no answer holds it or waits for it."""
        self._acquire_for_indexing()
        try:
            yield
        finally:
            self._release()

    def yield_to_answers(self) -> None:
        """Let all waiting answers and summaries run before indexing continues; call it between windows."""
        if self._waiting_answers or self._waiting_summaries:
            self._release()
            self._acquire_for_indexing()

    def _acquire_for_summary(self, cancelled: threading.Event) -> None:
        with self._condition:
            self._waiting_summaries += 1
            try:
                while (self._held or self._waiting_answers) and not cancelled.is_set():
                    self._condition.wait(_POLL_SECONDS)
                if cancelled.is_set():
                    raise CancelledError
                self._held = True
            finally:
                self._waiting_summaries -= 1
                self._condition.notify_all()

    def _acquire_for_indexing(self) -> None:
        with self._condition:
            self._condition.wait_for(
                lambda: not self._held and not self._waiting_answers and not self._waiting_summaries
            )
            self._held = True

    def _release(self) -> None:
        with self._condition:
            self._held = False
            self._condition.notify_all()
