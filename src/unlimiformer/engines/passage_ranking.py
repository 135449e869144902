"""Rank the passages of a document for a question: by attention, by shared words, and by their neighbours.

Shapes: S tokens of the document, n passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ..memory import Memory
from ..text.body import text_body
from ..text.headings import Section, find_sections, named_sections
from ..text.passages import PASSAGE_TOKENS, PassageSplitter, Span
from ..text.questions import asked_part
from ..text.word_search import WordSearch

_WORD_WEIGHT = 0.5  # of shared words, next to attention
_NEIGHBOUR_SHARES = (0.5, 0.25)  # of the scores of the next passages, and of those behind them
_PART_SHARE, _PART_TOKENS = 0.1, 1024  # the beginning or end of a document: a tenth of it, at least so many tokens


@dataclass(frozen=True)
class PassageQuery:
    """The words that are searched, the numbers (m,) of the passages among which they are searched, and the question."""

    text: str
    passages: Tensor
    question: str


@dataclass(frozen=True)
class RankedPassages:
    """Spans of a text's tokens, best first, and their scores (m,)."""

    spans: list[Span]
    scores: Tensor

    def first(self, max_tokens: int) -> RankedPassages:
        """The best passages that have at most `max_tokens` tokens together; at least one."""
        totals = accumulate(stop - start for start, stop in self.spans)
        count = max(1, sum(total <= max_tokens for total in totals))
        return RankedPassages(self.spans[:count], self.scores[:count])


class PassageRanker:
    """Ranks passages of memories.

    A passage gains from its neighbours, because what answers a question often stands next to what names its subject.
    """

    def __init__(self, splitter: PassageSplitter) -> None:
        self._splitter = splitter
        self._indexed: tuple[int, PassageIndex] | None = None

    def query(self, memory: Memory, question: str) -> PassageQuery:
        """What is searched for a question: what it names of a document.

        That is all of the text but for notices of its transcribers, the sections whose headings it names (which are
        then left out of the search), or the beginning or end.
        """
        index = self._index(memory)
        named = named_sections(question, index.sections)
        places = index.passages_in(named.sections) if named.sections else index.body
        part = asked_part(question)
        if part is not None:
            count = max(int(_PART_SHARE * len(places)), _PART_TOKENS // PASSAGE_TOKENS)
            places = places[:count] if part == "beginning" else places[-count:]
        return PassageQuery(named.remainder, torch.tensor(places), named.question)

    def rank(self, memory: Memory, query: PassageQuery, attention: Tensor) -> RankedPassages:
        """The passages of a query, best first; its attention to each token of the text is `attention` (S,)."""
        index = self._index(memory)
        attended, words = (
            index.mean_by_passage(attention)[query.passages],
            index.search.scores(query.text)[query.passages],
        )
        scores = _add_neighbours(_standardize(attended) + _WORD_WEIGHT * _standardize(words))
        order = scores.argsort(descending=True)
        return RankedPassages([index.spans[number] for number in query.passages[order].tolist()], scores[order])

    def _index(self, memory: Memory) -> PassageIndex:
        """The passages of a memory; those of the last one are kept."""
        if self._indexed is None or self._indexed[0] != memory.key:
            self._indexed = (memory.key, PassageIndex(memory, self._splitter))
        return self._indexed[1]


class PassageIndex:
    """The passages of one memory, their words, and the sections of the text."""

    def __init__(self, memory: Memory, splitter: PassageSplitter) -> None:
        self.spans = splitter.split(memory.text_ids)
        self.search = WordSearch(splitter.texts(memory.text_ids, self.spans))
        self._offsets = memory.offsets
        has_text = memory.offsets is not None and memory.stored_text is not None
        self.sections: list[Section] = find_sections(memory.text) if has_text else []
        self._first_row = memory.prefix_tokens
        self.body: list[int] = list(range(len(self.spans)))
        """Numbers of the passages of the text itself."""
        if has_text:
            self.body = self._passages_at([text_body(memory.text)]) or self.body

    def passages_in(self, sections: Sequence[Section]) -> list[int]:
        """Numbers of the passages that lie in some sections, at least in part."""
        return self._passages_at([(section.start, section.end) for section in sections])

    def _passages_at(self, places: Sequence[tuple[int, int]]) -> list[int]:
        """Numbers of the passages that have characters of [start, end) in one of some places."""
        assert self._offsets is not None, "a text with sections has offsets"
        rows = torch.tensor(self.spans) + self._first_row
        last_ends = self._offsets[:, 1].cummax(0).values  # a special token stands at 0
        starts, ends = self._offsets[rows[:, 0], 0], last_ends[rows[:, 1] - 1]
        inside = [(starts < end) & (ends > start) for start, end in places]
        return torch.stack(inside).any(0).nonzero()[:, 0].tolist()

    def mean_by_passage(self, scores: Tensor) -> Tensor:
        """Mean score (n,) of the tokens of each passage, from scores (S,) of tokens."""
        bounds = torch.tensor(self.spans)
        sums = torch.cat((torch.zeros(1, dtype=torch.float64), scores.double().cumsum(0)))
        return ((sums[bounds[:, 1]] - sums[bounds[:, 0]]) / (bounds[:, 1] - bounds[:, 0])).float()


def _standardize(scores: Tensor) -> Tensor:
    """The scores (n,) with mean 0 and deviation 1; zeros if they are all equal."""
    if scores.shape[0] < 2:
        return torch.zeros_like(scores)
    return (scores - scores.mean()) / scores.std().clamp_min(1e-6)


def _add_neighbours(scores: Tensor) -> Tensor:
    """The scores (n,) of passages plus a share of the scores of their neighbours."""
    total = scores.clone()
    for distance, share in enumerate(_NEIGHBOUR_SHARES, 1):
        before = torch.cat((scores[:1].expand(distance), scores[:-distance]))[: scores.shape[0]]
        behind = torch.cat((scores[distance:], scores[-1:].expand(distance)))[-scores.shape[0] :]
        total += share * (before + behind)
    return total
