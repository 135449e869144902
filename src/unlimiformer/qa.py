"""Questions about one text: where they go in each kind of model, and when the text has to be read for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .engines import CausalEngine
from .errors import UnlimiformerError
from .hub import MODELS, find_model
from .hub.saved_settings import load_saved_settings
from .memory.encode import Progress
from .memory.memory import Memory
from .model import Output, Unlimiformer
from .text.sources import as_token_ids, iter_text

PLACES = ("window", "decoder")
_ANSWER = 128  # tokens that an answer may have, if nobody says


@dataclass(frozen=True)
class QuestionFormat:
    """How an encoder–decoder is asked: `form` stands before every window, or at the start of the decoder's text.

    `summary` stands for the question where there is none. A decoder-only model is asked behind the text, as it is.
    """

    place: str = "window"
    form: str = "{question}\n"
    summary: str = "Summarize the text."

    def __post_init__(self) -> None:
        if self.place not in PLACES:
            raise UnlimiformerError(f"the question's place is {self.place!r}; expected one of: {', '.join(PLACES)}")
        try:
            said = self.form.format(question="?!")
        except (KeyError, IndexError, ValueError):
            said = ""
        if "?!" not in said:
            raise UnlimiformerError(
                f"the form of questions is {self.form!r}; expected some text with {{question}} in it"
            )

    @classmethod
    def of(cls, folder: str | Path) -> QuestionFormat | None:
        """How a model that was trained into this folder was taught to be asked; None where nobody says."""
        told = load_saved_settings(folder).get("asking")
        return None if told is None else cls(**told)

    @classmethod
    def for_model(cls, name: str) -> QuestionFormat:
        """How a model wants its questions: as it was trained, as the catalogue says, or plainly."""
        form = MODELS[name].question if name in MODELS else "{question}\n"
        return cls.of(find_model(name) or name) or cls(form=form)

    def text(self, question: str | None) -> str:
        """What the model is given."""
        return self.form.format(question=self.summary if question is None else question)

    def prompt(self, question: str | None, causal: bool) -> str:
        """What a model that has read the text is given: behind the text of a decoder-only one, or in the decoder."""
        if not causal and self.place == "decoder":
            return self.text(question)
        return self.summary if question is None else question


@dataclass(frozen=True)
class Answer:
    """An answer, without what the model was given before it; and the seconds that reading and answering took."""

    text: str
    output: Output
    reading: float
    answering: float

    def quotes(self, count: int) -> list[dict[str, Any]]:
        """So many passages that it came from, with their words; none where provenance was not asked for."""
        looked, found = self.output.provenance, self.output.memory
        passages = [] if looked is None else looked.passages(count)
        text = found.text if passages else ""
        return [{**vars(passage), "text": text[passage.start : passage.end]} for passage in passages]


@dataclass
class DocumentQA:
    """One text (a string, a path, pieces of text, or a memory) and a model that is asked about it.

    The text is read once, unless questions stand before every window: then it is read for each of them.
    """

    wrapped: Unlimiformer
    source: Any
    asking: QuestionFormat = field(default_factory=QuestionFormat)

    def __post_init__(self) -> None:
        self._causal = isinstance(self.wrapped.engine, CausalEngine)
        self._memory: Memory | None = self.source if isinstance(self.source, Memory) else None
        self._before_windows = not self._causal and self._memory is None and self.asking.place == "window"
        if as_token_ids(self.source) is not None:
            raise UnlimiformerError("token ids were given; expected a text that can be asked about, or its memory")
        self._text = "".join(iter_text(self.source)) if self._memory is None else ""
        self._reading = 0.0
        self._plain: Any = None

    @property
    def context_length(self) -> int:
        """How many tokens the plain model sees."""
        return self.wrapped.engine.context_length

    @property
    def asks_the_decoder(self) -> bool:
        """Whether an encoder–decoder has read the text, and only its decoder is given the question."""
        return not self._causal and not self._before_windows

    def ask(self, question: str | None, progress: Progress | None = None, **generation: Any) -> Answer:
        """The answer from all of the text, or a summary of it where there is no question.

        `progress` is told of the windows if the text has to be read.
        """
        memory = self._read(question, progress)
        prompt = None if self._before_windows else self.asking.prompt(question, self._causal)
        started = time.perf_counter()
        output = self.wrapped.generate(memory, prompt=prompt, **generation)
        seconds = time.perf_counter() - started
        return Answer(_new_text(self.wrapped, output, prompt), output, self._reading, seconds)

    def truncated(self, question: str | None, **generation: Any) -> str:
        """The plain model's answer to as much of the text as its window holds."""
        engine, tokenizer = self.wrapped.engine, self.wrapped.tokenizer
        text = self.source.text if isinstance(self.source, Memory) else self._text
        if isinstance(engine, CausalEngine):
            self._plain = self._plain or engine.truncated(text, generation.get("max_new_tokens", _ANSWER))
            return self._plain.ask(self.asking.prompt(question, self._causal), **generation)
        before = self.asking.text(question) if self._before_windows else ""
        inputs = tokenizer(before + text, truncation=True, max_length=self.wrapped.window, return_tensors="pt")
        given = {name: inputs[name].to(self.wrapped.model.device) for name in ("input_ids", "attention_mask")}
        if not self._before_windows:
            given["decoder_input_ids"] = engine.decoder_prompts([self.asking.prompt(question, self._causal)])
        with torch.no_grad():
            made = self.wrapped.model.generate(**given, **generation)  # such input takes the model's own path
        told = given["decoder_input_ids"].shape[1] if "decoder_input_ids" in given else 0
        return tokenizer.decode(made[0, told:], skip_special_tokens=True)

    def _read(self, question: str | None, progress: Progress | None) -> Memory:
        if self._memory is None or self._before_windows:
            started = time.perf_counter()
            prefix = self.asking.text(question) if self._before_windows else None
            self._memory = self.wrapped.index(self._text, prefix=prefix, progress=progress)
            self._reading = time.perf_counter() - started
        return self._memory


def ask_together(
    wrapped: Unlimiformer,
    sources: Sequence[Any],
    questions: Sequence[str | None],
    asking: QuestionFormat,
    **generation: Any,
) -> list[Answer]:
    """A reply for each of several texts, or of several memories, to its own question, in one call; None: a summary.

    Questions that the decoder is asked must have one number of tokens. All replies share the seconds.
    """
    causal = isinstance(wrapped.engine, CausalEngine)
    before = not causal and asking.place == "window" and not any(isinstance(source, Memory) for source in sources)
    prompts = [None if before else asking.prompt(question, causal) for question in questions]
    given: dict[str, Any] = {"prompt": prompts}
    if before:
        given = {"prefix": [asking.text(question) for question in questions]}
    started = time.perf_counter()
    outputs = wrapped.generate(list(sources), **given, **generation)
    seconds = (time.perf_counter() - started) / len(sources)
    return [
        Answer(_new_text(wrapped, output, prompt), output, 0.0, seconds)
        for output, prompt in zip(outputs, prompts, strict=True)
    ]


def _new_text(wrapped: Unlimiformer, output: Output, prompt: str | None) -> str:
    new = output.token_ids[wrapped.engine.prompt_length(prompt) :]
    return wrapped.tokenizer.decode(new, skip_special_tokens=True)
