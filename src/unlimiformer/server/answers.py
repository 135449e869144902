"""What one answer needs around `generate`: a stop signal, a streamer that calls back, and the result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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
    """

    text: str
    provenance: dict[str, Any] | None
    truncated: str | None
    seconds: float
    stopped: str | None = None


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
