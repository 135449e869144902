"""How a model is given a question about a document."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..hub import MODELS, find_model
from ..hub.saved_settings import load_saved_settings
from ..model import Unlimiformer

PLACES = ("window", "decoder")


@dataclass(frozen=True)
class QuestionFormat:
    """How a model is given a question.

    A decoder-only model gets the question behind the document, as it is; `place` and `form` are for encoder–decoders.

    Parameters
    ----------
    place : "window" puts the question before every window; "decoder" at the beginning of the decoder's text, so that
        one memory serves every question.
    form : a template with {question} in it.
    summary : what is asked for a summary.
    """

    place: str = "window"
    form: str = "{question}\n"
    summary: str = "Summarize the text."

    def __post_init__(self) -> None:
        if self.place not in PLACES:
            raise InputError(f"the question's place is {self.place!r}; expected one of: {', '.join(PLACES)}")
        try:
            example = self.form.format(question="?!")
        except (KeyError, IndexError, ValueError):
            example = ""
        if "?!" not in example:
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
                f"{folder}: the question format {fields!r} cannot be used; expected place, form and summary"
            ) from None

    @classmethod
    def for_model(cls, name: str) -> QuestionFormat:
        """The format of a model: as it was trained, as the registry says, or the plain question."""
        form = MODELS[name].question if name in MODELS else "{question}\n"
        return cls.from_folder(find_model(name) or name) or cls(form=form)

    def text(self, question: str | None) -> str:
        """The question in its template; None asks for a summary."""
        return self.form.format(question=self.summary if question is None else question)

    def prompt(self, question: str | None, wrapped: Unlimiformer) -> str:
        """The prompt for a model that has a memory of the document."""
        if wrapped.engine.kind == "encoder-decoder" and self.place == "decoder":
            return self.text(question)
        return self.summary if question is None else question
