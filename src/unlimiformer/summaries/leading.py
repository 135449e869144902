"""The first sentences of every part of a document: what a summary must be better than."""

from __future__ import annotations

from .extractive import DocumentSentences
from .selection import Statement


class LeadingSentences(DocumentSentences):
    """Takes sentences from the beginning of each part until it has its words; needs no model."""

    name = "leading"

    def choose(self, sentences: list[Statement], words: int) -> list[Statement]:
        """The first ones; at least one."""
        chosen: list[Statement] = []
        length = 0
        for sentence in sentences:
            length += len(sentence.text.split())
            if chosen and length > words:
                break
            chosen.append(sentence)
        return chosen
