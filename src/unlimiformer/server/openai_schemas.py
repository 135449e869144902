"""Bodies of requests in OpenAI's protocol. Fields that are not listed are ignored, as its clients send many."""

from __future__ import annotations

import base64
from pathlib import PurePath
from typing import Any, Literal

from pydantic import Field

from ..errors import InputError
from ..text.document_text import DocumentText
from ..text.formats import extract
from .chat import Sampling
from .schemas import Body

_UNSUPPORTED = ("tools", "functions", "logprobs", "audio", "echo")


class GenerationBody(Body):
    """What chats and completions have in common."""

    model: str = Field(max_length=500)
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stop: str | list[str] | None = None
    n: int | None = Field(default=None, ge=1)
    logprobs: Any = None

    @property
    def includes_usage(self) -> bool:
        """Whether the last event of a stream has the number of tokens."""
        return bool((self.stream_options or {}).get("include_usage"))

    def sampling(self) -> Sampling:
        """How the text is to be generated."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stop) > 16 or any(not string or len(string) > 1000 for string in stop):
            raise InputError(f"stop has {len(stop)} strings; expected at most 16, of 1 to 1,000 characters")
        return Sampling(self.max_tokens, self.temperature, self.top_p, tuple(stop))

    def check_supported(self) -> None:
        """Raise `InputError` for a request that cannot be fulfilled."""
        if (self.n or 1) > 1:
            raise InputError(f"n is {self.n}; expected 1: send several requests")
        for name in _UNSUPPORTED:
            if getattr(self, name, None):
                raise InputError(f"{name} is not supported; leave it out")


class FilePart(Body):
    """A file that is attached to a message: by the id of an uploaded one, or as base64 data with a name."""

    file_id: str | None = Field(default=None, max_length=100)
    file_data: str | None = None
    filename: str | None = Field(default=None, max_length=500)

    def content(self) -> DocumentText:
        """The text of a file that was sent as data."""
        data = (self.file_data or "").rpartition(",")[2]  # "data:application/pdf;base64,…"
        name = self.filename or "the attached file"
        try:
            content = base64.b64decode(data, validate=True)
        except ValueError as error:
            raise InputError(f"the data of {name} is not base64 ({error})") from None
        return extract(content, name, PurePath(name).suffix)


class ContentPart(Body):
    """A part of a message: some text or a file."""

    type: str
    text: str | None = None
    file: FilePart | None = None


class ChatMessage(Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart] | None = None

    @property
    def parts(self) -> list[ContentPart]:
        """The content as parts."""
        if isinstance(self.content, list):
            return self.content
        return [ContentPart(type="text", text=self.content or "")]


class ChatBody(GenerationBody):
    """A request for an answer in a chat."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: Any = None
    functions: Any = None
    audio: Any = None
    response_format: dict[str, Any] | None = None

    def sampling(self) -> Sampling:
        """How the text is to be generated."""
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return super().sampling()

    def check_supported(self) -> None:
        """Raise `InputError` for a request that cannot be fulfilled."""
        super().check_supported()
        if (self.response_format or {}).get("type", "text") != "text":
            raise InputError(f"response_format is {self.response_format}; expected text")
        if self.messages[-1].role == "assistant":
            raise InputError("the last message is the assistant's; expected one of the user")


class CompletionBody(GenerationBody):
    """A request for the continuation of a text."""

    prompt: str | list[str]
    echo: bool = False

    @property
    def text(self) -> str:
        """The text that is continued."""
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if len(prompts) != 1:
            raise InputError(f"{len(prompts)} prompts were given; expected one: send several requests")
        return prompts[0]
