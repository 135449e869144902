"""What one answer needs around `generate`: a stop signal, a streamer that calls back, and the result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteriaList, TextStreamer


@dataclass(frozen=True)
class ServedAnswer:
    """An answer as it is sent to the client.

    Parameters
    ----------
    text : the answer
    provenance : the passages it came from, as a dictionary, if the model supports it
    truncated : the answer of the plain model to the truncated document, if requested
    seconds : time to generate, without waiting for the model
    stopped : "cancelled" or "out of time" if generation was stopped early
    question : the question as it was understood, if it referred to an earlier one
    documents : the documents that were asked together, and where each begins in the text of the provenance
    """

    text: str
    provenance: dict[str, Any] | None
    truncated: str | None
    seconds: float
    stopped: str | None = None
    question: str | None = None
    documents: tuple[dict[str, Any], ...] = ()


class StopSignal:
    """Stopping criterion of `generate`: stop when `cancelled` is set or the deadline (`perf_counter`) has passed."""

    def __init__(self, cancelled: threading.Event, deadline: float) -> None:
        self._cancelled, self._deadline = cancelled, deadline
        self.reason: str | None = None

    @property
    def criteria(self) -> StoppingCriteriaList:
        """The signal as the argument `stopping_criteria` of `generate`."""
        return StoppingCriteriaList([self])  # type: ignore[list-item]

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Return, for each of the B sequences, whether to stop."""
        if self._cancelled.is_set():
            self.reason = "cancelled"
        elif time.perf_counter() > self._deadline:
            self.reason = "out of time"
        return torch.full((input_ids.shape[0],), self.reason is not None, device=input_ids.device, dtype=torch.bool)


class CallbackStreamer(TextStreamer):
    """Call `on_text` with the generated text, word by word."""

    def __init__(self, tokenizer: Any, on_text: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._on_text = on_text

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Pass on text that later tokens cannot change."""
        if text:
            self._on_text(text)


class StopStrings:
    """Ends an answer before the first of some strings, and passes on text that cannot be the beginning of one.

    `stopped` is set when one was found or when `cancelled` is.
    """

    def __init__(self, strings: Sequence[str], on_text: Callable[[str], None], cancelled: threading.Event) -> None:
        self._strings, self._on_text = tuple(strings), on_text
        self._text, self._sent = "", 0
        self.found = False
        self.stopped = _EitherEvent(cancelled)

    def put(self, text: str) -> None:
        """Take note of new text."""
        if self.found:
            return
        self._text += text
        end = self._find(self._text)
        if end is not None:
            self.found = True
            self.stopped.set()
        self._send(len(self._text) - self._held_back() if end is None else end)

    def end(self) -> None:
        """Pass on what was held back."""
        if not self.found:
            self._send(len(self._text))

    def cut(self, text: str) -> str:
        """A text up to the first of the strings."""
        end = self._find(text)
        return text if end is None else text[:end]

    def _find(self, text: str) -> int | None:
        places = [text.find(string) for string in self._strings]
        return min((place for place in places if place >= 0), default=None)

    def _held_back(self) -> int:
        """Length of the longest end of the text that is the beginning of a string."""
        return max(
            (
                length
                for string in self._strings
                for length in range(1, min(len(string), len(self._text)) + 1)
                if self._text.endswith(string[:length])
            ),
            default=0,
        )

    def _send(self, end: int) -> None:
        if end > self._sent:
            self._on_text(self._text[self._sent : end])
            self._sent = end


class _EitherEvent(threading.Event):
    """An event that is also set while another one is."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        """Whether one of the two is set."""
        return super().is_set() or self._other.is_set()
