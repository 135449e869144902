"""Bodies of the API's requests."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class PastedText(BaseModel):
    """A text and the name under which it is shown."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=200)
    text: str = Field(min_length=1)


class Question(BaseModel):
    """A question about a document; without `question`, a summary. `compare`: also ask the truncated model."""

    model_config = ConfigDict(extra="forbid")
    question: str | None = None
    compare: bool = False
    new_tokens: int | None = Field(default=None, ge=1, le=100_000)
