"""Chats of any length: a long one is answered from memories of its documents, a short one by the plain model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engines.answer_end import answer_tokens
from ..errors import InputError
from ..memory.memory import Memory
from ..qa import DocumentQA
from ..qa.conversation import standalone_question
from ..qa.messages import ChatRequest, Message, read_messages
from ..text.chat_template import render_chat
from ..text.document_text import DocumentText
from .answers import CallbackStreamer, StopSignal, StopStrings
from .content_memories import ContentMemories
from .documents import UNFINISHED, StoredDocument
from .priority_lock import CancelledError
from .worker import BackgroundWorker

_CHARACTERS_PER_TOKEN = 4
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Sampling:
    """How a client wants its text to be generated.

    Parameters
    ----------
    max_tokens : longest answer; None follows the question.
    temperature : 0 or None: the likeliest token.
    top_p : share of the probability from which tokens are sampled.
    stop : the answer ends before the first of these.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()

    def arguments(self, max_new_tokens: int) -> dict[str, Any]:
        """Arguments of `generate`."""
        if not self.temperature:
            return {"max_new_tokens": max_new_tokens, "do_sample": False, "num_beams": 1}
        sampled: dict[str, Any] = {"do_sample": True, "temperature": self.temperature, "num_beams": 1}
        return {"max_new_tokens": max_new_tokens, **sampled, **({} if self.top_p is None else {"top_p": self.top_p})}


@dataclass(frozen=True)
class ChatAnswer:
    """An answer, the tokens of the request and of the answer, and why it ended: "stop" or "length"."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    passages: list[dict[str, Any]] = field(default_factory=list)


class ChatService:
    """Answers chats and continues texts with the model of a worker."""

    def __init__(self, worker: BackgroundWorker) -> None:
        self._worker, self._wrapped = worker, worker.wrapped
        folder = worker.documents.folder / "conversations"
        self._memories = ContentMemories(folder, worker.wrapped, worker.model_lock)

    def answer(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: Callable[[str], None],
        on_progress: Callable[[int, int], None],
        cancelled: threading.Event,
    ) -> ChatAnswer:
        """Answer the last message of a chat; `on_progress` is called while a new document is indexed."""
        request = self._read(messages)
        if not request.documents:
            return self.complete(self._render(messages), sampling, on_text, cancelled)
        content = request.document
        stored = self._stored_document(content, cancelled, on_progress)
        if stored is None:
            memory = self._memories.get(content, cancelled, on_progress)
            return self._answer_from(memory, request, sampling, on_text, cancelled)
        with self._worker.while_kept([stored]):
            return self._answer_from(self._worker.open_memory(stored), request, sampling, on_text, cancelled)

    def _stored_document(
        self, content: DocumentText, cancelled: threading.Event, on_progress: Callable[[int, int], None]
    ) -> StoredDocument | None:
        """An uploaded document with the same text, once it is ready; None if there is none."""
        worker = self._worker
        for document in worker.documents.find_by_text(content.text):
            current: StoredDocument | None = document
            while current is not None and current.state in UNFINISHED:
                if cancelled.wait(_POLL_SECONDS):
                    raise CancelledError
                on_progress(*worker.progress(current))
                current = worker.documents.get(document.id)
            if current is not None and current.state == "ready":
                return current
        return None

    def _read(self, messages: Sequence[Message]) -> ChatRequest:
        """The documents and questions of a chat; one that exceeds the window in many short messages is a document."""
        longest = _CHARACTERS_PER_TOKEN * self._wrapped.engine.window
        request = read_messages(messages, longest)
        if not request.documents and sum(len(message.text) for message in messages) > 4 * longest:
            earlier = "\n\n".join(f"{message.role.capitalize()}: {message.text}" for message in messages[:-1])
            return ChatRequest((DocumentText(earlier),), (), messages[-1].text)
        return request

    def _answer_from(
        self,
        memory: Memory,
        request: ChatRequest,
        sampling: Sampling,
        on_text: Callable[[str], None],
        cancelled: threading.Event,
    ) -> ChatAnswer:
        worker, tokenizer = self._worker, self._wrapped.tokenizer
        longest = min(sampling.max_tokens or answer_tokens([request.question]), worker.limits.new_tokens)
        strings = StopStrings(sampling.stop, on_text, cancelled)
        with worker.model_lock.for_answer(cancelled):
            question = request.question
            if question is not None:
                question = standalone_question(question, request.turns, self._wrapped)
            stop = StopSignal(strings.stopped, time.perf_counter() + worker.limits.seconds)
            document = DocumentQA(self._wrapped, memory, worker.question_format)
            answer = document.ask(
                question,
                provenance=memory.offsets is not None and self._wrapped.engine.supports_provenance,
                streamer=CallbackStreamer(tokenizer, strings.put),
                stopping_criteria=stop.criteria,
                **sampling.arguments(longest),
            )
        strings.end()
        text = strings.cut(answer.text.strip())
        count = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        asked = len(tokenizer(request.question or "", add_special_tokens=False)["input_ids"])
        reason = "length" if count >= longest else "stop"
        return ChatAnswer(text, len(memory) + asked, count, reason, answer.quotes(3))

    def complete(
        self, prompt: str, sampling: Sampling, on_text: Callable[[str], None], cancelled: threading.Event
    ) -> ChatAnswer:
        """Continue a text of any length, as the wrapped model's own `generate` does."""
        worker, wrapped = self._worker, self._wrapped
        longest = min(sampling.max_tokens or worker.limits.new_tokens, worker.limits.new_tokens)
        strings = StopStrings(sampling.stop, on_text, cancelled)
        is_chat = wrapped.engine.kind == "decoder-only"
        inputs = wrapped.tokenizer(
            prompt, return_tensors="pt", add_special_tokens=not self._has_template, verbose=False
        ).to(wrapped.engine.device)
        if inputs["input_ids"].shape[1] == 0:
            raise InputError("the prompt is empty; expected some text")
        with worker.model_lock.for_answer(cancelled):
            stop = StopSignal(strings.stopped, time.perf_counter() + worker.limits.seconds)
            sequences = wrapped.model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                streamer=CallbackStreamer(wrapped.tokenizer, strings.put),
                stopping_criteria=stop.criteria,
                **sampling.arguments(longest),
            )
        strings.end()
        tokens = inputs["input_ids"].shape[1]
        new = sequences[0, tokens if is_chat else 1 :]
        text = strings.cut(wrapped.tokenizer.decode(new, skip_special_tokens=True))
        reason = "length" if len(new) >= longest and not strings.found else "stop"
        return ChatAnswer(text, tokens, len(new), reason)

    @property
    def _has_template(self) -> bool:
        return bool(getattr(self._wrapped.tokenizer, "chat_template", None))

    def _render(self, messages: Sequence[Message]) -> str:
        """A short chat as the model's own template writes it, or as the last message if it has none."""
        if not self._has_template:
            return messages[-1].text
        return render_chat(
            self._wrapped.tokenizer, [{"role": message.role, "content": message.text} for message in messages]
        )
