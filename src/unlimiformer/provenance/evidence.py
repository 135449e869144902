"""Which passages of a document a sentence of its summary stands on."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.names import missing_names
from ..text.passages import CharacterSpan, text_passages
from ..text.word_search import WordSearch
from .provenance import Passage

_PASSAGES = 2


class EvidenceSearch:
    """Finds passages of one document by the words that they share with a sentence."""

    def __init__(self, document: str) -> None:
        self._document = document
        self._spans = text_passages(document)
        self._search = WordSearch([document[start:end] for start, end in self._spans])

    def find(self, sentence: str, within: Sequence[CharacterSpan], count: int = _PASSAGES) -> tuple[Passage, ...]:
        """The best passages of some parts of the document, at most `count`; none if no word is shared."""
        scores = self._search.scores(sentence).tolist()
        inside = [
            (score, span)
            for score, span in zip(scores, self._spans, strict=True)
            if score > 0 and any(span[0] < end and span[1] > start for start, end in within)
        ]
        best = sorted(inside, key=lambda scored: -scored[0])[:count]
        total = sum(score for score, _ in best)
        return tuple(Passage(*span, score / total) for score, span in best)

    def text(self, sentence: str, within: CharacterSpan, count: int) -> str:
        """The text of the best passages, in the order of the document; empty if no word is shared."""
        spans = sorted((passage.start, passage.end) for passage in self.find(sentence, [within], count))
        return " ".join(self._document[start:end].strip() for start, end in spans)

    def supports(self, sentence: str, within: CharacterSpan) -> bool:
        """Whether a part of the document has every name and number of a sentence."""
        return not missing_names(sentence, self._document[slice(*within)])
