"""Rank paragraphs by TF-IDF for a title, as the authors of WikiSum do."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence


def rank_by_tfidf(paragraphs: Sequence[str], title: str) -> list[str]:
    """Sort paragraphs by their TF-IDF score for the words of the title, best first; ties keep their order.

    The score sums, over the words of the title, the count of the word in the paragraph times the logarithm of the
    number of paragraphs over the number of those that contain the word.
    """
    counts = [Counter(split_words(paragraph)) for paragraph in paragraphs]
    document_frequency = {word: sum(word in count for count in counts) for word in set(split_words(title))}
    idf = {word: math.log(len(counts) / frequency) for word, frequency in document_frequency.items() if frequency}
    scores = [sum(count[word] * idf[word] for word in sorted(idf)) for count in counts]
    return [paragraphs[i] for i in sorted(range(len(counts)), key=lambda i: -scores[i])]


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())
