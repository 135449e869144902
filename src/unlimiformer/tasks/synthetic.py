"""Synthetic facts in real texts: generate facts with their questions, and insert them as lines of their own.

Three users: training and evaluation tasks (`generate_examples`), the needle benchmark (`needles`, `planted`) and the
demo (`FACTS`, `plant`). The tasks share no wordings and no texts with the needle benchmark, which measures what was
learned from them. Half of their names are invented, so that an answer must be copied and cannot be guessed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError
from ..hub import get_text
from ..hub.registry import TEXTS
from .definition import SyntheticSpec
from .example import Example


def _load_data(name: str) -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


_DATA = _load_data("synthetic.yaml")
WORDS: dict[str, list[str]] = _DATA["words"]
FORMS: list[dict[str, Any]] = _DATA["forms"]
_HELD_BACK = tuple(f"shakespeare/{play}" for play in ("hamlet", "macbeth", "othello", "lear"))
_REAL_NAME = 0.5  # share of names that exist; the others are composed of syllables
_OTHER_FORM = 0.3  # share of distractor facts with another wording
_REPEATED_SUBJECT = 0.5  # share of distractor facts about a subject that other facts mention
_SAME_TITLE = 0.7  # share of wordings in which all persons have one title
_WORDS_PER_LINE = 4  # of a play, approximately


@dataclass(frozen=True)
class Fact:
    """A sentence, a question that it answers, all wordings of that question, and the answer."""

    sentence: str
    question: str
    questions: frozenset[str]
    answer: str


class Wording:
    """A template for facts: a form of the YAML file with all its words chosen, except subject and answer."""

    def __init__(self, form: dict[str, Any], rng: random.Random) -> None:
        self._sentence, self._questions = rng.choice(form["said"]), form["asked"]
        self.subject, self.answer = form["subject"], form["answer"]
        slots = re.findall(r"{(\w+)}", " ".join((self._sentence, *self._questions)))
        self._words = {slot: rng.choice(WORDS[slot]) for slot in slots if slot in WORDS}
        self._title = rng.choice(WORDS["titles"]) if rng.random() < _SAME_TITLE else None

    def make_fact(self, subject: str, rng: random.Random) -> Fact:
        """Fill in the subject and a random answer, and choose one wording of the question."""
        if self.subject == "person":
            subject = f"{self._title or rng.choice(WORDS['titles'])} {subject}"
        answer = _random_value(self.answer, rng)
        words = {**self._words, "subject": subject, "answer": answer}
        sentence = _capitalize(self._sentence.format(**words))
        questions = [_capitalize(question.format(**words)) for question in self._questions]
        return Fact(sentence, rng.choice(questions), frozenset(questions), answer)


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]


def _random_value(kind: str, rng: random.Random) -> str:
    """Draw a place, a person's name, a number, a time of day, or a word of the list `kind`."""
    if kind in ("place", "person"):
        if rng.random() < _REAL_NAME:
            return rng.choice(WORDS[f"{kind}_names"])
        middle = "".join(rng.choice(WORDS["syllables_between"]) for _ in range(rng.choice((1, 1, 2))))
        return rng.choice(WORDS["syllables_first"]) + middle + rng.choice(WORDS[f"{kind}_endings"])
    if kind == "number":
        return str(rng.randrange(10, 10 ** rng.choice((3, 4, 5, 5, 5))))
    if kind == "time":
        return f"{rng.randrange(24)}:{rng.randrange(12) * 5:02d}"
    return rng.choice(WORDS[kind])


def generate_facts(rng: random.Random, distractors: int) -> list[Fact]:
    """Generate a fact and its distractor facts, no two of which answer the same question.

    Most distractors have the wording of the first fact and another subject; many have a subject that is mentioned
    elsewhere.
    """
    wordings = [Wording(rng.choice(FORMS), rng)]
    used_names: dict[str, list[str]] = {"place": [], "person": []}
    facts: list[Fact] = []
    for _ in range(6 * (distractors + 1)):  # there are many names, so that a few attempts are enough
        if len(facts) > distractors:
            break
        if facts and rng.random() < _OTHER_FORM / len(wordings):
            wordings.append(Wording(rng.choice(FORMS), rng))
        wording = rng.choice(wordings)
        subjects = used_names[wording.subject]
        repeated = subjects and rng.random() < _REPEATED_SUBJECT
        subject = rng.choice(subjects) if repeated else _random_value(wording.subject, rng)
        candidate = wording.make_fact(subject, rng)
        if all(candidate.questions.isdisjoint(fact.questions) for fact in facts):
            facts.append(candidate)
            subjects.append(subject)
            if wording.answer in used_names:
                used_names[wording.answer].append(candidate.answer)
    return facts


def generate_examples(count: int, spec: SyntheticSpec, seed: int) -> list[Example]:
    """Generate examples in the registry's plays, without those of the needle benchmark or, if held back, in these."""
    plays = [name for name in TEXTS if name.startswith("shakespeare/")]
    names = [name for name in plays if (name in _HELD_BACK) == spec.held_back]
    return examples_from_texts([get_text(name).read_text() for name in names], count, spec, seed)


def examples_from_texts(texts: Sequence[str], count: int, spec: SyntheticSpec, seed: int) -> list[Example]:
    """Generate examples: random passages of the texts with inserted facts, about some of which a question is asked."""
    rng = random.Random(seed)
    text_lines = [[line for line in text.split("\n") if line.strip()] for text in texts]
    examples: list[Example] = []
    while len(examples) < count:
        lines, word_count = rng.choice(text_lines), rng.randint(*spec.words)
        start = rng.randrange(max(1, len(lines) - word_count // _WORDS_PER_LINE))
        passage: list[str] = []
        while sum(len(line.split()) for line in passage) < word_count and start + len(passage) < len(lines):
            passage.append(lines[start + len(passage)])
        facts = generate_facts(rng, rng.randint(spec.questions - 1, spec.rivals))
        for fact in facts:
            passage.insert(rng.randint(0, len(passage)), fact.sentence)
        document = "\n".join(passage)
        examples += [Example(document, fact.answer, fact.question) for fact in facts[: spec.questions]]
    return examples[:count]


NeedleWording = tuple[str, str]
"""A sentence and the question that it answers, with the slots {subject} and {answer}."""

_NEEDLE_DATA = _load_data("needles.yaml")
NEEDLE_WORDINGS: dict[str, dict[str, tuple[NeedleWording, ...]]] = {
    purpose: {
        kind: tuple((wording["sentence"], wording["question"]) for wording in wordings)
        for kind, wordings in kinds.items()
    }
    for purpose, kinds in _NEEDLE_DATA["wordings"].items()
}
_PLACES, _NAMES, _SURNAMES = (_NEEDLE_DATA[key] for key in ("places", "names", "surnames"))
_MAX_DEPTHS = min(len(_PLACES), len(_NAMES), len(_SURNAMES))


@dataclass(frozen=True)
class Needle:
    """A fact at a relative depth of the document: 0 is its beginning, 1 its end."""

    kind: str
    depth: float
    sentence: str
    question: str
    answer: str

    def answered_by(self, text: str) -> bool:
        """Return whether the answer is one of the words of a text."""
        return self.answer.lower() in re.findall(r"\w+", text.lower())


def generate_needles(depths: int, which: str, seed: int = 0) -> list[Needle]:
    """Generate one fact of each kind for every depth; `which` is a key of NEEDLE_WORDINGS."""
    if not 1 <= depths <= _MAX_DEPTHS:
        raise InputError(f"depths is {depths}; expected 1 to {_MAX_DEPTHS}")
    rng = random.Random(seed)
    facts = []
    for kind, wordings in NEEDLE_WORDINGS[which].items():
        subjects = rng.sample(_SURNAMES if kind == "place" else _PLACES, depths)
        answers = {  # all three are drawn for each kind: fewer draws would change the facts of every seed
            "number": [str(number) for number in rng.sample(range(10_000, 100_000), depths)],
            "name": rng.sample(_NAMES, depths),
            "place": rng.sample(_PLACES, depths),
        }[kind]
        for i, (subject, answer) in enumerate(zip(subjects, answers, strict=True)):
            sentence, question = wordings[i % len(wordings)]
            words = {"subject": subject, "answer": answer}
            facts.append(Needle(kind, (i + 0.5) / depths, sentence.format(**words), question.format(**words), answer))
    return facts


def plant_needles(text: str, facts: Sequence[Needle], tokens: int, tokenizer: Any, seed: int = 0) -> str:
    """Cut a text to about `tokens` tokens, with the facts inserted as lines at even distances, in order of depth."""
    rng = random.Random(seed)
    fact_tokens = len(tokenizer("\n".join(fact.sentence for fact in facts), verbose=False)["input_ids"])
    token_ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if fact_tokens >= tokens:
        raise InputError(
            f"{len(facts)} facts have {fact_tokens} tokens, the document {tokens}; expected a longer document, or "
            "fewer --depths"
        )
    if len(token_ids) < tokens:
        raise InputError(f"the texts have {len(token_ids)} tokens; expected {tokens}: give more of them (--text)")
    lines = tokenizer.decode(token_ids[: max(1, tokens - fact_tokens)]).split("\n")
    ordered = sorted(facts, key=lambda fact: (fact.depth, rng.random()))
    for i, fact in reversed(list(enumerate(ordered))):
        lines.insert(round((i + 0.5) / len(ordered) * len(lines)), fact.sentence)
    return "\n".join(lines)


@dataclass(frozen=True)
class PlantedFact:
    """A sentence to insert at a relative place of a text (0 to 1), and the question that it answers."""

    place: float
    sentence: str
    question: str


DEMO_FACT = PlantedFact(0.65, "The code of the vault in Prague is 48213.", "What is the code of the vault in Prague?")


def plant_facts(text: str, facts: Sequence[PlantedFact]) -> str:
    """Insert each fact as a paragraph of its own, at the first empty line after its place."""
    lines = text.split("\n")
    for fact in sorted(facts, key=lambda fact: fact.place, reverse=True):
        i = int(len(lines) * fact.place)
        while i < len(lines) and lines[i].strip():
            i += 1
        lines.insert(i, f"\n{fact.sentence}\n")
    return "\n".join(lines)
