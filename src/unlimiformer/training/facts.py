"""Questions that a program writes: facts on lines of their own in real texts, among rivals of their kind.

Wordings, names and texts are not those of `bench needle`, which measures what was learned from these. Half of the
names are made up of syllables, so that an answer has to be copied and cannot be guessed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from ..catalogue import get_text
from ..catalogue.entries import TEXTS
from .data import Example

_WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_NOT_READ = tuple(f"shakespeare/{play}" for play in ("hamlet", "macbeth", "othello", "lear"))
_REAL = 0.5  # the share of names that exist; the others are made up of syllables


@dataclass(frozen=True)
class Fact:
    """What it is about, a sentence, a question that it answers, and the answer."""

    about: tuple[str, ...]
    sentence: str
    question: str
    answer: str


def _a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _word(rng: random.Random, endings: Sequence[str]) -> str:
    return rng.choice(_WORDS["syllables_first"]) + rng.choice(_WORDS["syllables_between"]) + rng.choice(endings)


def _place(rng: random.Random) -> str:
    return rng.choice(_WORDS["places"]) if rng.random() < _REAL else _word(rng, _WORDS["place_endings"])


def _name(rng: random.Random) -> str:
    return rng.choice(_WORDS["names"]) if rng.random() < _REAL else _word(rng, _WORDS["name_endings"])


def _number(rng: random.Random) -> str:
    return str(rng.randrange(10, 10 ** rng.choice((3, 4, 5, 5))))


def _role(place: str, rng: random.Random, form: random.Random) -> Fact:
    role, name = form.choice(_WORDS["roles"]), _name(rng)
    said = form.choice(
        (
            f"The {role} of {place} is {name}.",
            f"The {role} of {place} is called {name}.",
            f"In {place} the {role} is named {name}.",
            f"{name} is the {role} of {place}.",
            f"They say that the {role} in {place} is a certain {name}.",
        )
    )
    asked = form.choice(
        (
            f"Who is the {role} of {place}?",
            f"What is the name of the {role} of {place}?",
            f"What is the {role} of {place} called?",
            f"Which person is the {role} in {place}?",
        )
    )
    return Fact((place, role), said, asked, name)


def _code(place: str, rng: random.Random, form: random.Random) -> Fact:
    thing, number = form.choice(_WORDS["codes"]), _number(rng)
    said = form.choice(
        (
            f"The {thing} in {place} is {number}.",
            f"In {place} the {thing} is {number}.",
            f"{number} is the {thing} in {place}.",
            f"Remember that the {thing} in {place} is {number}.",
        )
    )
    asked = form.choice(
        (f"What is the {thing} in {place}?", f"In {place}, what is the {thing}?", f"Tell me the {thing} in {place}.")
    )
    return Fact((place, thing), said, asked, number)


def _count(place: str, rng: random.Random, form: random.Random) -> Fact:
    holder, items, number = form.choice(_WORDS["holders"]), form.choice(_WORDS["counted"]), _number(rng)
    said = form.choice(
        (
            f"The {holder} in {place} has {number} {items}.",
            f"There are {number} {items} in the {holder} of {place}.",
            f"The {holder} of {place} counted {number} {items}.",
        )
    )
    asked = form.choice(
        (
            f"How many {items} does the {holder} in {place} have?",
            f"How many {items} are there in the {holder} of {place}?",
        )
    )
    return Fact((place, holder, items), said, asked, number)


def _deed(name: str, rng: random.Random, form: random.Random) -> Fact:
    title, (deed, asked), place = form.choice(_WORDS["titles"]), form.choice(_WORDS["deeds"]), _place(rng)
    who = f"{title} {name}"
    return Fact((who, deed), f"{who[0].upper()}{who[1:]} {deed} {place}.", asked.format(who=who), place)


def _colour(name: str, rng: random.Random, form: random.Random) -> Fact:
    title, owned, colour = form.choice(_WORDS["titles"]), form.choice(_WORDS["owned"]), rng.choice(_WORDS["colours"])
    who = f"{title} {name}"
    said = form.choice((f"The {owned} of {who} is {colour}.", f"{who[0].upper()}{who[1:]} has {_a(colour)} {owned}."))
    return Fact((who, owned), said, f"What colour is the {owned} of {who}?", colour)


def _time(place: str, rng: random.Random, form: random.Random) -> Fact:
    vehicle, time = form.choice(_WORDS["vehicles"]), f"{rng.randrange(24)}:{rng.randrange(12) * 5:02d}"
    said = form.choice((f"The {vehicle} to {place} leaves at {time}.", f"At {time} the {vehicle} to {place} departs."))
    return Fact((place, vehicle), said, f"When does the {vehicle} to {place} leave?", time)


_Kind = Callable[[str, random.Random, random.Random], Fact]
"""A subject, what draws the answer, and what draws the wording, to a fact."""
_OF_PLACES: tuple[_Kind, ...] = (_role, _code, _count, _time)
_OF_PEOPLE: tuple[_Kind, ...] = (_deed, _colour, _deed)


def _facts(rng: random.Random, rivals: int) -> list[Fact]:
    """One fact, and rivals: most have its wording and another subject, some its subject and another wording."""
    kinds, subject = (_OF_PLACES, _place) if rng.random() < 0.6 else (_OF_PEOPLE, _name)
    kind, form, first = rng.choice(kinds), rng.random(), subject(rng)
    found = [kind(first, rng, random.Random(form))]
    for _ in range(4 * rivals):  # names are many: a few tries are enough
        if rng.random() < 0.75:
            made = kind(subject(rng), rng, random.Random(form))
        else:
            made = rng.choice(kinds)(first, rng, rng)
        if len(found) <= rivals and made.about not in {fact.about for fact in found}:
            found.append(made)
    return found


def written(count: int, words: tuple[int, int], rivals: int, seed: int) -> list[Example]:
    """Examples in all texts of the catalogue but those of `bench needle`."""
    names = [name for name in TEXTS if name not in _NOT_READ]
    return examples_in([get_text(name).read_text() for name in names], count, words, rivals, seed)


def examples_in(texts: Sequence[str], count: int, words: tuple[int, int], rivals: int, seed: int) -> list[Example]:
    """Passages of the texts, of so many words each, with a fact to be asked for and up to so many rivals."""
    rng = random.Random(seed)
    lines = [[line for line in text.split("\n") if line.strip()] for text in texts]
    made = []
    for _ in range(count):
        page, wanted = rng.choice(lines), rng.randint(*words)
        start = rng.randrange(max(1, len(page) - wanted // 4))
        passage: list[str] = []
        while sum(len(line.split()) for line in passage) < wanted and start + len(passage) < len(page):
            passage.append(page[start + len(passage)])
        facts = _facts(rng, rng.randint(0, rivals))
        for fact in facts:
            passage.insert(rng.randint(0, len(passage)), fact.sentence)
        made.append(Example("\n".join(passage), facts[0].answer, facts[0].question))
    return made
