"""Word search (BM25) as a baseline: the passages of a document that share most words with a question."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ..provenance.provenance import split_sentences
from ..text.tokenization import truncate_text
from ..utils.optional import require

_PASSAGE_TOKENS = 64


@dataclass(frozen=True)
class _Passage:
    text: str
    tokens: int


class BM25Search:
    """Searches one document. Passages are whole sentences, together about 64 tokens long."""

    def __init__(self, document: str, tokenizer: Any) -> None:
        self.document, self._tokenizer = document, tokenizer
        self._bm25s = require("bm25s", "evaluate", "method 'bm25'")
        logging.getLogger("bm25s").setLevel(logging.ERROR)  # it logs every step
        self._passages = self._split(document)
        self._index = self._bm25s.BM25()
        self._index.index(self._tokenize([passage.text for passage in self._passages]), show_progress=False)

    def select(self, question: str | None, budget: int) -> str:
        """The best passages in document order, together at most `budget` tokens; without a question, the first ones."""
        ranking, selected, tokens = self._rank(question), [], 0
        for position in ranking:
            if tokens + self._passages[position].tokens > budget:
                break
            selected.append(position)
            tokens += self._passages[position].tokens
        if not selected:  # the best passage alone is too long
            return truncate_text(self._passages[ranking[0]].text, self._tokenizer, budget)
        return "\n".join(self._passages[position].text for position in sorted(selected))

    def _rank(self, question: str | None) -> list[int]:
        if question is None:
            return list(range(len(self._passages)))
        results = self._index.retrieve(self._tokenize([question]), k=len(self._passages), show_progress=False)
        return results.documents[0].tolist()

    def _tokenize(self, texts: list[str]) -> Any:
        return self._bm25s.tokenize(texts, stopwords="en", show_progress=False)

    def _split(self, document: str) -> list[_Passage]:
        passages: list[_Passage] = []
        text, tokens = "", 0
        for start, end in split_sentences(document):
            text += document[start:end]
            tokens += len(self._tokenizer(document[start:end], add_special_tokens=False, verbose=False)["input_ids"])
            if tokens >= _PASSAGE_TOKENS:
                passages.append(_Passage(text.strip(), tokens))
                text, tokens = "", 0
        if text:
            passages.append(_Passage(text.strip(), tokens))
        return passages
