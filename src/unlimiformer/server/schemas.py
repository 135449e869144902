"""Bodies of the API's requests."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Body(BaseModel):
    """What all bodies have in common: their texts are valid."""

    @field_validator("*")
    @classmethod
    def check_texts(cls, value: Any) -> Any:
        """Refuse half of a character, which JSON can express and UTF-8 cannot."""
        if isinstance(value, list):
            return [cls.check_texts(item) for item in value]
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"{value[error.start]!r} is half of a character; expected valid text") from None
        return value


class PastedText(Body):
    """A text and the name under which it is shown."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=200)
    text: str = Field(min_length=1)


class EarlierTurn(Body):
    """A question that was asked before, and its answer."""

    model_config = ConfigDict(extra="forbid")
    question: str = Field(max_length=10_000)
    answer: str = Field(max_length=100_000)


class Question(Body):
    """A question about a document; without `question`, a summary.

    `compare`: also ask the truncated model. `turns`: what was asked before, to which the question may refer.
    """

    model_config = ConfigDict(extra="forbid")
    question: str | None = None
    compare: bool = False
    new_tokens: int | None = Field(default=None, ge=1, le=100_000)
    turns: list[EarlierTurn] = Field(default_factory=list, max_length=100)


class QuestionAboutSeveral(Body):
    """A question about several documents, by their ids."""

    model_config = ConfigDict(extra="forbid")
    documents: list[Annotated[str, Field(pattern="^[0-9a-f]{16}$")]] = Field(min_length=1, max_length=100)
    question: str
    new_tokens: int | None = Field(default=None, ge=1, le=100_000)
    turns: list[EarlierTurn] = Field(default_factory=list, max_length=100)
