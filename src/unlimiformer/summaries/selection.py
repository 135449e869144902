"""Which sentences about the sections of a part are kept if there is no room for all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..text.answer_sentences import is_repetition
from ..text.passages import CharacterSpan

_TOLERANCE = 1.1  # a part may have so many times the words that it should have
_SHORTEST_WORD = 4  # shorter words tell little


@dataclass(frozen=True)
class Statement:
    """A sentence that the model wrote, and the characters of the document that it was written from."""

    text: str
    origin: CharacterSpan


def select_statements(statements: Sequence[Statement], words: int) -> list[Statement]:
    """The statements, in order, that together say most in about so many words; at least one.

    A word counts more if more statements have it, and once; long statements count a little less.
    """
    distinct: list[Statement] = []
    for statement in statements:
        if not is_repetition(statement.text, [other.text for other in distinct]):
            distinct.append(statement)
    contents = [_content_words(statement.text) for statement in distinct]
    frequency = Counter(word for content in contents for word in content)
    lengths = [len(statement.text.split()) for statement in distinct]
    left, chosen, said = list(range(len(distinct))), list[int](), set[str]()
    room = _TOLERANCE * words
    while left:
        gains = {n: sum(frequency[word] ** 0.5 for word in contents[n] - said) / lengths[n] ** 0.5 for n in left}
        best = max(left, key=lambda n: gains[n])
        left.remove(best)
        if lengths[best] <= room or not chosen:
            chosen.append(best)
            said |= contents[best]
            room -= lengths[best]
    return [distinct[number] for number in sorted(chosen)]


def _content_words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.casefold()) if len(word) >= _SHORTEST_WORD}
