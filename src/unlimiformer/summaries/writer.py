"""Sentences that the plain model writes about short texts: in batches, and kept, so that a summary can continue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from transformers import LogitsProcessorList

from ..engines import Engine
from ..engines.answer_end import RepetitionLimit
from ..engines.question_format import QuestionFormat
from ..memory.fingerprint import model_digest, tokenizer_digest
from ..text.answer_sentences import clean_sentences
from ..utils.resumable_run import ResumableRun
from .parts import MOST_SENTENCES

BATCH = 8
"""Texts that the model reads at once."""
_TOKENS_PER_SENTENCE = 60
_COUNTS = ("one sentence", "two sentences", "three sentences", "four sentences")
_ANSWER_START = "In this part,"
"""A small model that begins so tells what happens; otherwise it copies a sentence, or tells that there is a text."""
_ROWS, _SETTINGS = "written.jsonl", "settings.json"


class SectionWriter:
    """Summarises short texts in one or a few sentences.

    Parameters
    ----------
    generation : arguments of `generate`, beside the length.
    run : keeps what is written; None to keep nothing.
    """

    def __init__(
        self,
        engine: Engine,
        question_format: QuestionFormat,
        generation: dict[str, Any],
        run: ResumableRun | None = None,
    ) -> None:
        self._engine, self._format, self._generation, self._run = engine, question_format, generation, run
        self._written: dict[str, list[str]] = {row["key"]: row["answers"] for row in run.rows()} if run else {}
        self._identity = self._describe_model() if run else []

    @classmethod
    @contextmanager
    def open(
        cls, engine: Engine, question_format: QuestionFormat, generation: dict[str, Any], folder: Path | None
    ) -> Iterator[SectionWriter]:
        """A writer that keeps what it writes in a folder, if one is given."""
        if folder is None:
            yield cls(engine, question_format, generation)
            return
        with ResumableRun.open(folder / _ROWS, folder / _SETTINGS, {"format": 1}) as run:
            yield cls(engine, question_format, generation, run)

    @staticmethod
    def room(engine: Engine) -> int:
        """Tokens of a text that the model can read and write about."""
        return engine.truncated_room({"max_new_tokens": MOST_SENTENCES * _TOKENS_PER_SENTENCE})

    def write(self, texts: Sequence[str], count: int) -> list[list[str]]:
        """Sentences about each of some texts, at most `count`; up to `BATCH` texts are read at once."""
        sentences = []
        for start in range(0, len(texts), BATCH):
            answers = self._answers(list(texts[start : start + BATCH]), count)
            sentences += [clean_sentences(answer)[:count] for answer in answers]
        return sentences

    def _answers(self, texts: list[str], sentences: int) -> list[str]:
        instruction = self._instruction(sentences)
        length = _TOKENS_PER_SENTENCE * sentences
        generation = {"max_new_tokens": length, "do_sample": False, "num_beams": 1, **self._generation}
        values = [*self._identity, texts, instruction, _ANSWER_START, generation]
        key = sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
        if key not in self._written:
            own = generation.get("logits_processor") or ()
            processors = LogitsProcessorList([RepetitionLimit(self._engine.tokenizer, times=1), *own])
            generation = {**generation, "logits_processor": processors}
            answers = self._format.plain_answers(texts, instruction, self._engine, generation, _ANSWER_START)
            if self._run is not None:
                self._run.append({"key": key, "answers": answers})
            self._written[key] = answers
        return self._written[key]

    def _describe_model(self) -> list[Any]:
        """What decides the answers to the same texts."""
        engine = self._engine
        return [
            model_digest(engine.base.config, engine.base),
            tokenizer_digest(engine.tokenizer),
            getattr(engine.tokenizer, "chat_template", None),
            engine.model.generation_config.to_dict(),
            asdict(self._format),
        ]

    def _instruction(self, sentences: int) -> str | None:
        """What the model is asked; None if an encoder–decoder summarises what it is given without being asked."""
        if self._engine.kind == "encoder-decoder" and self._format.summary_prompt is None:
            return None
        return f"Summarize the text in {_COUNTS[sentences - 1]}, with the names of the people."
