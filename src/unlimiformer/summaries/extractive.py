"""Sentences of the document itself: nothing in such a summary is invented."""

from __future__ import annotations

import re
from abc import abstractmethod

from ..provenance import Passage
from ..text.passages import CharacterSpan
from ..text.sentences import split_sentences
from .base import Summarizer, SummaryRequest
from .outline import SECTION_TOKENS, outline
from .parts import divide_into_parts
from .selection import Statement, select_statements
from .summary import ChapterSummary, Summary, SummarySentence

_SHORTEST, _LONGEST = 8, 40  # words of a sentence that can stand alone
_DIALOGUE = re.compile(r"[\"“”„«»]|(?:^|\s)['‘]\w")
_DEPENDENT = re.compile(
    r"(?:he|she|it|they|we|his|her|its|their|this|that|these|those|there|such|but|and|or|so|then|thus|yet|also|both)\b",
    re.IGNORECASE,
)


class DocumentSentences(Summarizer):
    """A summary of sentences of each part of the document, which a subclass chooses."""

    def summarize(self, request: SummaryRequest) -> Summary:
        """The chosen sentences of every part."""
        summaries = []
        for part in divide_into_parts(
            outline(request.text, self._engine.tokenizer, SECTION_TOKENS), request.words, request.by_chapter
        ):
            span = (part.sections[0][0], part.sections[-1][1])
            chosen = self.choose(all_sentences(request.text, span), part.words)
            sentences = tuple(SummarySentence(each.text, (Passage(*each.origin, 1.0),)) for each in chosen)
            summaries.append(ChapterSummary(part.title, sentences))
            request.on_part(summaries[-1])
        return self._join(summaries, request)

    @abstractmethod
    def choose(self, sentences: list[Statement], words: int) -> list[Statement]:
        """Sentences of one part, in order, about so many words."""


class Extractive(DocumentSentences):
    """Takes from each part the sentences that share most words with the others; needs no model.

    Left out is what cannot stand alone: dialogue, very short and very long sentences, and, if there are enough others,
    sentences that begin with a pronoun or a conjunction.
    """

    name = "extractive"

    def choose(self, sentences: list[Statement], words: int) -> list[Statement]:
        """The most telling of those that can stand alone."""
        return select_statements(candidates(sentences, words), words)


def all_sentences(text: str, span: CharacterSpan) -> list[Statement]:
    """The sentences of a part of a text, in order."""
    first, last = span
    spans = [(first + start, first + end) for start, end in split_sentences(text[first:last])]
    return [Statement(" ".join(text[start:end].split()), (start, end)) for start, end in spans]


def candidates(sentences: list[Statement], words: int) -> list[Statement]:
    """The sentences that can stand alone; if these have too few words, all of them."""
    complete = [sentence for sentence in sentences if _is_complete(sentence.text)]
    for kept in ([sentence for sentence in complete if not _DEPENDENT.match(sentence.text)], complete):
        if sum(len(sentence.text.split()) for sentence in kept) >= words:
            return kept
    return [sentence for sentence in sentences if sentence.text]


def _is_complete(sentence: str) -> bool:
    return (
        _SHORTEST <= len(sentence.split()) <= _LONGEST
        and sentence[0].isupper()
        and sentence.endswith((".", "!", "?"))
        and _DIALOGUE.search(sentence) is None
    )
