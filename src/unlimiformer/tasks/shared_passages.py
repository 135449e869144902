"""Shorten documents so that several questions share one short text: their evidence, and other passages beside it.

A model that is trained to read selected passages learns all questions of a text from one reading of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from ..text.passages import overlap, text_passages
from ..text.questions import is_broad
from .example import Example, with_shortest_answers

_FEWEST_WORDS, _MOST_WORDS = 150, 450  # of a text


def share_passages(examples: Sequence[Example]) -> list[Example]:
    """Return every question about a fact with a short document that holds its evidence; neighbours share a document.

    How long a text is, and which other passages stand in it, is drawn at random, always the same way. Of several right
    answers the shortest is learned. Questions without known evidence, and broad ones, are left out.
    """
    rng = random.Random(0)
    by_document: dict[str, list[Example]] = {}
    for example in with_shortest_answers(examples):
        if example.evidence and example.answer is not None and not is_broad(example.question):
            by_document.setdefault(example.document, []).append(replace(example, id=None))
    return [short for about_it in by_document.values() for short in _shorten(about_it, rng)]


def _shorten(examples: Sequence[Example], rng: random.Random) -> list[Example]:
    """The examples of one document."""
    document = examples[0].document
    passages = text_passages(document)
    words = [len(document[start:end].split()) for start, end in passages]
    wanted = [
        {number for number, span in enumerate(passages) if any(overlap(span, part) for part in example.evidence)}
        for example in examples
    ]
    order = sorted(range(len(examples)), key=lambda i: min(wanted[i], default=0))
    shortened: list[Example] = []
    while order:
        limit, group = rng.randint(_FEWEST_WORDS, _MOST_WORDS), [order.pop(0)]
        chosen = set(wanted[group[0]])
        while order and sum(words[number] for number in chosen | wanted[order[0]]) <= limit:
            group.append(order.pop(0))
            chosen |= wanted[group[-1]]
        others = [number for number in range(len(passages)) if number not in chosen]
        rng.shuffle(others)
        for number in others:
            if sum(words[other] for other in chosen) + words[number] <= limit:
                chosen.add(number)
        text = _join(document, [passages[number] for number in sorted(chosen)])
        shortened += [replace(examples[i], document=text, evidence=()) for i in group]
    return shortened


def _join(document: str, spans: Sequence[tuple[int, int]]) -> str:
    """Passages in order; those that do not follow each other stand on lines of their own."""
    parts: list[str] = []
    last_end = None
    for start, end in spans:
        if start == last_end:
            parts[-1] += document[start:end]
        else:
            parts.append(document[start:end])
        last_end = end
    return "\n".join(part.strip() for part in parts)
