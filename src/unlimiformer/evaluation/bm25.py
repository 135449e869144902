"""Word search (BM25) as a baseline: the passages of a document that share most words with a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..text.passages import PASSAGE_TOKENS
from ..text.sentences import split_sentences
from ..text.tokenization import truncate_text
from ..text.word_search import WordSearch


@dataclass(frozen=True)
class _Passage:
    start: int
    end: int
    tokens: int


class BM25Search:
    """Searches one document. Passages are whole sentences, together about 64 tokens long."""

    def __init__(self, document: str, tokenizer: Any) -> None:
        self.document, self._tokenizer = document, tokenizer
        self._passages = self._split(document)
        self._search = WordSearch([document[passage.start : passage.end] for passage in self._passages])

    def select(self, question: str | None, budget: int) -> list[tuple[int, int]]:
        """Start and end of the best passages, in document order, together at most `budget` tokens.

        Without a question they are the first ones.
        """
        ranking = list(range(len(self._passages)))
        if question is not None:
            ranking = self._search.scores(question).sort(descending=True, stable=True).indices.tolist()
        selected: list[_Passage] = []
        for passage in (self._passages[position] for position in ranking):
            if sum(other.tokens for other in selected) + passage.tokens > budget:
                break
            selected.append(passage)
        if not selected:  # the best passage alone is too long
            best = self._passages[ranking[0]]
            return [(best.start, best.start + len(self._truncate(best, budget)))]
        return sorted((passage.start, passage.end) for passage in selected)

    def _truncate(self, passage: _Passage, budget: int) -> str:
        return truncate_text(self.document[passage.start : passage.end], self._tokenizer, budget)

    def _split(self, document: str) -> list[_Passage]:
        passages: list[_Passage] = []
        first, tokens = 0, 0
        sentences = split_sentences(document)
        for start, end in sentences:
            tokens += len(self._tokenizer(document[start:end], add_special_tokens=False, verbose=False)["input_ids"])
            if tokens >= PASSAGE_TOKENS or end == sentences[-1][1]:
                passages.append(_Passage(first, end, tokens))
                first, tokens = end, 0
        return passages
