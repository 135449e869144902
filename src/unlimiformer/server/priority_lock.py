"""The lock of the model: one thread uses it at a time; answers come before summaries, and both before indexing.

Those who wait behind get a turn after every few turns of others, so that nobody waits for ever while many ask.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_POLL_SECONDS = 0.2  # how often a waiting answer checks whether it was cancelled
_ANSWER, _SUMMARY, _INDEXING = range(3)  # the first come first
_PATIENCE = 4  # turns that others take before one who waits behind them gets a turn


class Cancelled(Protocol):
    """Tells whether somebody still waits."""

    def is_set(self) -> bool:
        """Whether nobody does."""


class CancelledError(Exception):
    """An answer or the indexing of a document was cancelled."""


class _LostError(Exception):
    """A summary was cancelled while it had given the lock to others."""


class PriorityLock:
    """A lock for answers, summaries and indexing, in this order."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._held = False
        self._waiting = [0, 0, 0]  # threads of each kind
        self._passed = [0, 0, 0]  # turns that were taken by others while this kind waited

    @property
    def waiting_answers(self) -> int:
        """Number of answers that wait for the lock."""
        return self._waiting[_ANSWER]

    @property
    def waiting_summaries(self) -> int:
        """Number of summaries that wait for the lock."""
        return self._waiting[_SUMMARY]

    @contextmanager
    def for_answer(self, cancelled: Cancelled) -> Iterator[None]:
        """Hold the lock for an answer; raise `CancelledError` if `cancelled` is set before the lock is free."""
        self._acquire(_ANSWER, cancelled)
        try:
            yield
        finally:
            self._release()

    @contextmanager
    def for_summary(self, cancelled: threading.Event) -> Iterator[None]:
        """Hold the lock for a summary; raise `CancelledError` if `cancelled` is set before it is its turn."""
        self._acquire(_SUMMARY, cancelled)
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
        """Let those who wait before a summary run until it continues; call it between sections, holding the lock."""
        if self._waiting[_ANSWER] or self._is_due(_INDEXING):
            self._release()
            try:
                self._acquire(_SUMMARY, cancelled)
            except CancelledError:
                raise _LostError from None

    @contextmanager
    def for_indexing(self) -> Iterator[None]:
        """Hold the lock for indexing."""
        self._acquire(_INDEXING)
        try:
            yield
        finally:
            self._release()

    def yield_to_answers(self) -> None:
        """Let those who wait before indexing run until it continues; call it between windows, holding the lock."""
        if self._waiting[_ANSWER] or self._waiting[_SUMMARY]:
            self._release()
            self._acquire(_INDEXING)

    def _acquire(self, kind: int, cancelled: Cancelled | None = None) -> None:
        with self._condition:
            self._waiting[kind] += 1
            try:
                while not self._may_take(kind) and not (cancelled is not None and cancelled.is_set()):
                    self._condition.wait(None if cancelled is None else _POLL_SECONDS)
                if cancelled is not None and cancelled.is_set():
                    raise CancelledError
                self._held = True
                for other in (_SUMMARY, _INDEXING):
                    self._passed[other] = self._passed[other] + 1 if other != kind and self._waiting[other] else 0
            finally:
                self._waiting[kind] -= 1
                if not self._waiting[kind]:
                    self._passed[kind] = 0
                self._condition.notify_all()

    def _may_take(self, kind: int) -> bool:
        """Whether the lock is free, and nobody who waits comes before this kind."""
        if self._held:
            return False
        due = next((other for other in (_INDEXING, _SUMMARY) if self._is_due(other)), None)
        return kind == due if due is not None else not any(self._waiting[:kind])

    def _is_due(self, kind: int) -> bool:
        return self._waiting[kind] > 0 and self._passed[kind] >= _PATIENCE

    def _release(self) -> None:
        with self._condition:
            self._held = False
            self._condition.notify_all()
