"""Questions that a program writes: facts on lines of their own in real texts, among rivals of their kind.

Wordings, names and texts are not those of `bench needle`, which measures what was learned from these. Half of the
names are made up of syllables, so that an answer has to be copied and cannot be guessed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..hub import get_text
from ..hub.registry import TEXTS
from .definition import Size
from .jsonl import Example

_TOLD = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
WORDS: dict[str, list[str]] = _TOLD["words"]
FORMS: list[dict[str, Any]] = _TOLD["forms"]
_HELD_BACK = tuple(f"shakespeare/{play}" for play in ("hamlet", "macbeth", "othello", "lear"))
_REAL = 0.5  # the share of names that exist; the others are made up of syllables
_OTHER_FORM, _KNOWN_SUBJECT = 0.3, 0.5  # shares of rivals with another wording, and about something named before
_SAME_TITLE = 0.7  # of wordings in which all people have one title


@dataclass(frozen=True)
class Fact:
    """A sentence, a question that it answers and all other ways of asking that, and the answer."""

    sentence: str
    question: str
    questions: frozenset[str]
    answer: str


class Wording:
    """One way of stating something, and of asking for it, with its words chosen; subject and answer are still open."""

    def __init__(self, form: dict[str, Any], rng: random.Random) -> None:
        self._said, self._asked = rng.choice(form["said"]), form["asked"]
        self.subject, self.answer = form["subject"], form["answer"]
        named = re.findall(r"{(\w+)}", " ".join((self._said, *self._asked)))
        self._slots = {name: rng.choice(WORDS[name]) for name in named if name in WORDS}
        self._title = rng.choice(WORDS["titles"]) if rng.random() < _SAME_TITLE else None

    def fact(self, subject: str, rng: random.Random) -> Fact:
        """With this subject and an answer by chance; the question is asked in any of its ways."""
        if self.subject == "person":
            subject = f"{self._title or rng.choice(WORDS['titles'])} {subject}"
        answer = _drawn(self.answer, rng)
        filled = {**self._slots, "subject": subject, "answer": answer}
        sentence = _capital(self._said.format(**filled))
        questions = [_capital(asked.format(**filled)) for asked in self._asked]
        return Fact(sentence, rng.choice(questions), frozenset(questions), answer)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _drawn(kind: str, rng: random.Random) -> str:
    """A place, a person's name, a number, a time of day, or one of the words of that kind."""
    if kind in ("place", "person"):
        if rng.random() < _REAL:
            return rng.choice(WORDS[f"{kind}_names"])
        middle = "".join(rng.choice(WORDS["syllables_between"]) for _ in range(rng.choice((1, 1, 2))))
        return rng.choice(WORDS["syllables_first"]) + middle + rng.choice(WORDS[f"{kind}_endings"])
    if kind == "number":
        return str(rng.randrange(10, 10 ** rng.choice((3, 4, 5, 5, 5))))
    if kind == "time":
        return f"{rng.randrange(24)}:{rng.randrange(12) * 5:02d}"
    return rng.choice(WORDS[kind])


def facts(rng: random.Random, rivals: int) -> list[Fact]:
    """One fact and its rivals: most have its wording and another subject, many a subject that is named elsewhere."""
    wordings = [Wording(rng.choice(FORMS), rng)]
    named: dict[str, list[str]] = {"place": [], "person": []}
    found: list[Fact] = []
    for _ in range(6 * (rivals + 1)):  # names are many: a few tries are enough
        if len(found) > rivals:
            break
        if found and rng.random() < _OTHER_FORM / len(wordings):
            wordings.append(Wording(rng.choice(FORMS), rng))
        wording = rng.choice(wordings)
        known = named[wording.subject]
        subject = rng.choice(known) if known and rng.random() < _KNOWN_SUBJECT else _drawn(wording.subject, rng)
        made = wording.fact(subject, rng)
        if all(made.questions.isdisjoint(fact.questions) for fact in found):
            found.append(made)
            known.append(subject)
            if wording.answer in named:
                named[wording.answer].append(made.answer)
    return found


def written(count: int, size: Size, seed: int) -> list[Example]:
    """Examples in all texts of the catalogue but those of `bench needle`; in these alone if they are held back."""
    names = [name for name in TEXTS if (name in _HELD_BACK) == size.held_back]
    return examples_in([get_text(name).read_text() for name in names], count, size, seed)


def examples_in(texts: Sequence[str], count: int, size: Size, seed: int) -> list[Example]:
    """So many examples: passages of the texts, with facts of which some are asked for."""
    rng = random.Random(seed)
    lines = [[line for line in text.split("\n") if line.strip()] for text in texts]
    made: list[Example] = []
    while len(made) < count:
        page, wanted = rng.choice(lines), rng.randint(*size.words)
        start = rng.randrange(max(1, len(page) - wanted // 4))  # a line has some four words
        passage: list[str] = []
        while sum(len(line.split()) for line in passage) < wanted and start + len(passage) < len(page):
            passage.append(page[start + len(passage)])
        told = facts(rng, rng.randint(size.questions - 1, size.rivals))
        for fact in told:
            passage.insert(rng.randint(0, len(passage)), fact.sentence)
        document = "\n".join(passage)
        made += [Example(document, fact.answer, fact.question) for fact in told[: size.questions]]
    return made[:count]
