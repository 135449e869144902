"""A story of named people, and a model that writes about texts what a function says."""

from __future__ import annotations

import random
from collections.abc import Callable

from tiny_causal_models import tiny_decoder

from unlimiformer import Unlimiformer

PEOPLE = ("Anna", "Boris", "Clara", "Dmitri", "Elena", "Fyodor", "Galina", "Hugo", "Irina", "Jakob", "Katya", "Lev")


_STARTS, _ENDS = ("am", "bel", "cor", "dun", "fer", "gal"), ("ber", "low", "ten", "rick", "mer", "don")
WORDS = [start + end for start in _STARTS for end in _ENDS]


def make_sentence(person: str, *seed: int | str) -> str:
    """A sentence about a person, with other words for another seed."""
    words = random.Random(str(seed)).sample(WORDS, 8)
    return f"Then {' '.join(words[:3])} {person} {' '.join(words[3:])}."


def make_story(chapters: int, sentences: int = 40) -> str:
    """A story in which each chapter tells of one person."""
    parts = []
    for number in range(chapters):
        person = PEOPLE[number % len(PEOPLE)]
        told = " ".join(make_sentence(person, number, day) for day in range(sentences))
        parts.append(f"CHAPTER {number + 1}\n\n{told}")
    return "\n\n".join(parts)


class Scribe:
    """A wrapped model whose plain answers come from `write(text, instruction)`; it records what it was asked."""

    def __init__(self, tokenizer, write: Callable[[str, str], str]) -> None:
        self.wrapped = Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32)
        self.asked: list[tuple[str, str]] = []
        self.batches: list[int] = []
        self.write = write
        self.wrapped.engine.truncated_generate = self._generate  # type: ignore[method-assign]
        self.wrapped.engine.truncated_room = lambda generation: 512  # type: ignore[method-assign]

    def _generate(self, texts, prompts, generation, answer_start=""):
        self.batches.append(len(texts))
        self.asked += zip(texts, prompts, strict=True)
        return [self.write(text, prompt) for text, prompt in zip(texts, prompts, strict=True)]
