"""How a model is given a question about a document, or asked for a summary of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from ..errors import InputError
from ..hub import MODELS, find_model
from ..hub.saved_settings import load_saved_settings
from .base import Engine

PLACES = ("window", "first", "decoder")
SUMMARY_PROMPT = "Summarize the text."
"""What a decoder-only model is asked for a summary unless the user says otherwise; it must be asked something."""


@dataclass(frozen=True)
class QuestionFormat:
    """How a model is given a question.

    A decoder-only model gets the question behind the document, as it is; `place` and `form` are for encoder–decoders.

    Parameters
    ----------
    place : "window" puts the question before every window; "first" once, in front of the document, as the code of the
        paper's authors does; "decoder" at the beginning of the decoder's text, so that a memory serves all questions.
    form : a template with {question} in it.
    summary_prompt : what is asked for a summary. None: an encoder–decoder is given the document alone.
    """

    place: str = "window"
    form: str = "{question}\n"
    summary_prompt: str | None = None

    def __post_init__(self) -> None:
        if self.place not in PLACES:
            raise InputError(f"the question's place is {self.place!r}; expected one of: {', '.join(PLACES)}")
        if not _is_form(self.form):
            raise InputError(f"the form of questions is {self.form!r}; expected some text with {{question}} in it")

    @classmethod
    def from_folder(cls, folder: str | Path) -> QuestionFormat | None:
        """The format that a model in this folder was trained with; None if the folder does not say."""
        fields = load_saved_settings(folder).get("asking")
        if fields is None:
            return None
        try:
            return cls(**fields)
        except TypeError:
            raise InputError(
                f"{folder}: the question format {fields!r} cannot be used; expected place, form and summary_prompt"
            ) from None

    @classmethod
    def for_model(cls, name: str) -> QuestionFormat:
        """The format of a model: as it was trained, as the registry says, or the plain question."""
        trained = cls.from_folder(find_model(name) or name)
        if trained is not None or name not in MODELS:
            return trained or cls()
        return cls(form=MODELS[name].question, summary_prompt=MODELS[name].summary_prompt)

    def text(self, question: str | None) -> str:
        """The question in its template; None asks for a summary, and is empty if nothing is asked for one."""
        asked = self.summary_prompt if question is None else question
        return "" if asked is None else self.form.format(question=asked)

    def prompt(self, question: str | None, engine: Engine) -> str | None:
        """The prompt for a model that has a memory of the document; None begins the answer at once."""
        asked = self.summary_prompt if question is None else question
        if engine.kind == "decoder-only":
            return asked or SUMMARY_PROMPT
        return self.text(question) or None if self.place == "decoder" else asked

    def plain_answers(
        self,
        texts: list[str],
        question: str | None,
        engine: Engine,
        generation: dict[str, Any],
        answer_start: str = "",
    ) -> list[str]:
        """The plain model's answers to one question about as much of each text as its context holds.

        `answer_start`: words with which a decoder-only model begins every answer.
        """
        if engine.kind == "encoder-decoder" and self.place != "decoder":
            asked = self.text(question)
            return engine.truncated_generate([asked + text for text in texts], [None] * len(texts), generation)
        prompts = [self.prompt(question, engine)] * len(texts)
        return engine.truncated_generate(texts, prompts, generation, answer_start)


def _is_form(form: str) -> bool:
    """Whether a template has {question} and no other field; formats and attributes would let it do more than that."""
    try:
        fields = [field for _, *field in Formatter().parse(form) if field[0] is not None]
    except ValueError:
        return False
    return bool(fields) and all(field == ["question", "", None] for field in fields)
