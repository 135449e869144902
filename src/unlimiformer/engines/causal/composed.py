"""An answer to a broad question: a few sentences from every part of the selected passages, joined.

A small model that reads all passages at once writes about the first thing that it finds, or repeats itself. So it reads
them part by part, and what it says twice, or about names that the part does not have, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ...memory import Memory
from ...provenance import Provenance, Span
from ...provenance.evidence import EvidenceSearch
from ...text.answer_sentences import clean_sentences, is_repetition
from ...text.names import missing_names
from ..answer_end import loop_start

PART_TOKENS = 512
SENTENCES_PER_PART = 2
TOKENS_PER_PART = 90
"""Longest answer about a part."""
INSTRUCTION = "Answer in two sentences."
_PRONOUN = re.compile(r"(?:he|she|it|they|his|her|its|their|this|these|both)\b", re.IGNORECASE)


def split_tokens(tokens: Tensor, ends_sentence: Callable[[int], bool], ids: Tensor) -> list[Tensor]:
    """Parts of selected tokens (m,) of a document with ids (S,): about equally long, at most about `PART_TOKENS`."""
    count = -(-tokens.shape[0] // PART_TOKENS)
    target = tokens.shape[0] / count
    cuts: list[int] = []
    for place, token in enumerate(ids[tokens].tolist(), 1):
        beyond = place - target * (len(cuts) + 1)
        if beyond >= 0 and len(cuts) < count - 1 and (ends_sentence(token) or beyond >= target / 4):
            cuts.append(place)
    return list(tokens.tensor_split(cuts))


@dataclass(frozen=True)
class ComposedAnswer:
    """Sentences of an answer, and the number of the part that each is about."""

    sentences: list[str]
    parts: list[int]

    @classmethod
    def compose(
        cls,
        question: str,
        texts: Sequence[str],
        answers: Sequence[str],
        fits: Callable[[str], bool] = lambda text: True,
    ) -> ComposedAnswer:
        """The answer to a question from what was written about each text, as long as it `fits`."""
        sentences: list[str] = []
        parts: list[int] = []
        for number, (text, answer) in enumerate(zip(texts, answers, strict=True)):
            dropped = False
            for sentence in clean_sentences(answer)[:SENTENCES_PER_PART]:
                known = f"{question} {text}"
                longer = " ".join((*sentences, sentence))
                repeats = is_repetition(sentence, [question, *sentences]) or loop_start(longer) is not None
                if missing_names(sentence, known) or repeats or not fits(longer):
                    dropped = True
                elif not (dropped and _PRONOUN.match(sentence)):  # it would refer to nothing
                    sentences.append(sentence)
                    parts.append(number)
        if sentences:
            return cls(sentences, parts)
        return cls([answers[0].strip()], [0])  # better than nothing

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)

    def provenance(self, memory: Memory, parts: Sequence[Tensor]) -> Provenance:
        """The passages of each sentence, in the part of the document that it was written from."""
        assert memory.offsets is not None, "checked by the caller"
        search = EvidenceSearch(memory.text)
        spans: list[Span] = []
        start = 0
        for sentence, number in zip(self.sentences, self.parts, strict=True):
            within = memory.character_spans(parts[number] + memory.prefix_tokens)
            spans.append(Span(sentence, start, start + len(sentence), list(search.find(sentence, within))))
            start += len(sentence) + 1
        return Provenance.from_sentences(memory, spans)
