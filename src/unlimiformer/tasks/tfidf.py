"""Paragraphs of many documents, the likeliest to matter first: the ranking of WikiSum's authors."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence


def by_tf_idf(paragraphs: Sequence[str], title: str) -> list[str]:
    """Sorted by the sum, over the words of the title, of their count in a paragraph times the logarithm of all
    paragraphs over those that have the word. Equals stay as they were.
    """
    counts = [Counter(words_of(paragraph)) for paragraph in paragraphs]
    wanted = set(words_of(title))
    having = {word: sum(word in count for count in counts) for word in wanted}
    rarity = {word: math.log(len(counts) / number) for word, number in having.items() if number}
    scores = [sum(count[word] * rarity[word] for word in sorted(rarity)) for count in counts]
    return [paragraphs[place] for place in sorted(range(len(counts)), key=lambda place: -scores[place])]


def words_of(text: str) -> list[str]:
    """In small letters, without punctuation."""
    return re.findall(r"\w+", text.lower())
