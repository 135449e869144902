"""Synthetic facts: generation, insertion into texts, and that training shares no wording with the needle benchmark."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from unlimiformer.errors import InputError
from unlimiformer.tasks.definition import SyntheticSpec
from unlimiformer.tasks.synthetic import (
    DEMO_FACT,
    NEEDLE_WORDINGS,
    WORDS,
    PlantedFact,
    examples_from_texts,
    generate_facts,
    generate_needles,
    plant_facts,
    plant_needles,
)


def test_examples_have_their_facts_among_distractors():
    """Facts are lines of the passage, and examples depend on the seed alone."""
    texts = ["\n".join(f"line {i} of a play with some words" for i in range(500))]
    spec = SyntheticSpec((60, 200), 9, 4)
    examples = examples_from_texts(texts, 50, spec, seed=3)
    assert examples == examples_from_texts(texts, 50, spec, seed=3) != examples_from_texts(texts, 50, spec, seed=4)
    for example in examples:
        assert sum(line.startswith("line ") for line in example.document.split("\n")) >= 6
        assert example.answer in example.document
    documents = [example.document for example in examples]
    assert all(documents.count(document) == 4 for document in documents[:48])


def test_no_two_facts_answer_the_same_question():
    rng = random.Random(0)
    for _ in range(200):
        facts = generate_facts(rng, 9)
        questions = [question for fact in facts for question in fact.questions]
        assert len(facts) == 10 and len(set(questions)) == len(questions)
        assert all(fact.answer in fact.sentence and fact.question in fact.questions for fact in facts)
        assert all("{" not in fact.sentence + fact.question for fact in facts)


def test_training_shares_no_wording_with_the_needle_benchmark():
    training_words = {word for name in ("roles", "codes", "titles", "vehicles") for word in WORDS[name]}
    for kinds in NEEDLE_WORDINGS.values():
        for wordings in kinds.values():
            for sentence, _ in wordings:
                padded = f" {sentence.lower()} "
                assert not any(f" {word} " in padded for word in map(str.lower, training_words)), sentence


@pytest.mark.parametrize("which", list(NEEDLE_WORDINGS))
def test_needles_have_one_fact_of_each_kind_per_depth(which):
    facts = generate_needles(6, which, seed=2)
    assert facts == generate_needles(6, which, seed=2) != generate_needles(6, which, seed=3)
    assert len(facts) == 18 and len({fact.question for fact in facts}) == 18
    for kind in ("number", "name", "place"):
        assert [fact.depth for fact in facts if fact.kind == kind] == [(i + 0.5) / 6 for i in range(6)]
    for fact in facts:
        assert fact.answer in fact.sentence and "{" not in fact.sentence + fact.question
        assert fact.answered_by(f"It is {fact.answer.upper()}.") and not fact.answered_by(f"{fact.answer}s")
    with pytest.raises(InputError, match="depths is 0; expected 1 to 30"):
        generate_needles(0, which)


def test_needles_are_planted_in_order_of_depth():
    class LineTokenizer:
        """Each line is a token."""

        def __call__(self, text, **_):
            return {"input_ids": text.split("\n")}

        def decode(self, token_ids):
            return "\n".join(token_ids)

    facts = generate_needles(4, "reported")
    text = "\n".join(f"line {i}" for i in range(300))
    lines = plant_needles(text, facts, 120, LineTokenizer()).split("\n")
    assert len(lines) == 120 and [line for line in lines if line.startswith("line")] == text.split("\n")[:108]
    depths = {fact.sentence: fact.depth for fact in facts}
    positions = [i for i, line in enumerate(lines) if line in depths]
    assert len(positions) == 12
    assert [depths[lines[i]] for i in positions] == sorted(depths.values())
    distances = [right - left for left, right in pairwise(positions)]
    assert max(distances) - min(distances) <= 2
    with pytest.raises(InputError, match="12 facts have 12 tokens, the document 12"):
        plant_needles(text, facts, 12, LineTokenizer())
    with pytest.raises(InputError, match="the texts have 300 tokens; expected 301"):
        plant_needles(text, facts, 301, LineTokenizer())


def test_facts_are_planted_at_their_places():
    text = "\n".join(f"line {i}" if i % 3 else "" for i in range(300))
    facts = [DEMO_FACT, PlantedFact(0.2, "The harbour master is called Duarte.", "What is he called?")]
    with_facts = plant_facts(text, facts)
    for fact in facts:
        start = with_facts.index(f"\n\n{fact.sentence}\n")
        assert abs(start / len(with_facts) - fact.place) < 0.06
    without_facts = "".join(with_facts.split())
    for fact in facts:
        without_facts = without_facts.replace("".join(fact.sentence.split()), "")
    assert without_facts == "".join(text.split())
    assert plant_facts("one line", [PlantedFact(0.9, "A.", "?")]).endswith("\nA.\n")
