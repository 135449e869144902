"""Select the tokens of a document from which a question is answered. `generation.py` decides what is done with them.

Shapes: S tokens of the document, n blocks, m selected tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ...memory import Memory
from ...text.passages import PassageSplitter, Span
from ...text.word_search import WordSearch
from .block_scorer import BlockScorer
from .prompts import PromptSuffix
from .row_layout import Head, RowLayout

_WORD_WEIGHT = 0.5  # of shared words, next to attention
_NEIGHBOUR_SHARES = (0.5, 0.25)  # of the scores of the next passages, and of those behind them


@dataclass(frozen=True)
class SelectedTokens:
    """Selected tokens (m,) of a document, in order, and their weights (m,), which add up to one."""

    tokens: Tensor
    weights: Tensor

    @classmethod
    def everything(cls, memory: Memory) -> SelectedTokens:
        """The whole document, with equal weights."""
        length = memory.text_tokens
        return cls(torch.arange(length), torch.full((length,), 1 / length))

    @classmethod
    def from_spans(cls, scores: dict[tuple[int, int], float], length: int) -> SelectedTokens:
        """The tokens of some spans (start, stop), each span weighted by its score."""
        weights = torch.zeros(length)
        for (start, stop), score in scores.items():
            weights[start:stop] += max(score, 1e-9) / (stop - start)
        tokens = weights.nonzero()[:, 0]
        return cls(tokens, weights[tokens] / weights[tokens].sum())


class PassageSelector:
    """The best passages: those that the retrieval heads attend to and that share words with the question.

    A passage gains from its neighbours, because what answers a question often stands next to what names its subject.
    """

    def __init__(self, scorer: BlockScorer, layout: RowLayout, block: int, splitter: PassageSplitter) -> None:
        self._scorer, self._layout, self._block, self._splitter = scorer, layout, block, splitter
        self._indexed: tuple[int, PassageIndex] | None = None

    def select(self, memory: Memory, suffix: PromptSuffix, sizes: Sequence[int]) -> list[SelectedTokens]:
        """For each size the best passages, together at most so many tokens; each size once if they are the same."""
        length = memory.text_tokens
        if memory.windows == 1 or length <= min(sizes):
            return [SelectedTokens.everything(memory)]
        scores, spans = self.score(memory, suffix), self._index(memory).spans
        ranking = scores.argsort(descending=True).tolist()
        ranked = [spans[passage] for passage in ranking]
        counts = sorted({_fitting(ranked, size) for size in sizes})
        return [self._selected(ranking[:count], scores, spans, length) for count in counts]

    def _selected(self, passages: list[int], scores: Tensor, spans: list[Span], length: int) -> SelectedTokens:
        shares = (scores[passages] - scores[passages].max()).exp().tolist()
        return SelectedTokens.from_spans({spans[p]: share for p, share in zip(passages, shares, strict=True)}, length)

    def score(self, memory: Memory, suffix: PromptSuffix) -> Tensor:
        """Score (n,) of every passage for a question."""
        index = self._index(memory)
        by_head = self._scorer.score_blocks(memory, self._layout, suffix.question)
        attention = index.mean_by_passage(torch.stack(list(by_head.values())).sum(0), self._block)
        words = index.search.scores(suffix.text)
        return _add_neighbours(_standardize(attention) + _WORD_WEIGHT * _standardize(words))

    def _index(self, memory: Memory) -> PassageIndex:
        """The passages of a memory; those of the last one are kept."""
        if self._indexed is None or self._indexed[0] != memory.key:
            self._indexed = (memory.key, PassageIndex(memory, self._splitter))
        return self._indexed[1]


class PassageIndex:
    """The passages of one memory, and their words."""

    def __init__(self, memory: Memory, splitter: PassageSplitter) -> None:
        self.spans = splitter.split(memory.text_ids)
        self.search = WordSearch(splitter.texts(memory.text_ids, self.spans))

    def mean_by_passage(self, scores: Tensor, block: int) -> Tensor:
        """Mean score (n,) of the tokens of each passage, from the scores of blocks."""
        bounds = torch.tensor(self.spans)
        sums = torch.cat((torch.zeros(1, dtype=torch.float64), scores.double().repeat_interleave(block).cumsum(0)))
        return ((sums[bounds[:, 1]] - sums[bounds[:, 0]]) / (bounds[:, 1] - bounds[:, 0])).float()


def _fitting(spans: Sequence[Span], max_tokens: int) -> int:
    """How many of the first spans have at most `max_tokens` tokens together; at least one."""
    totals = accumulate(stop - start for start, stop in spans)
    return max(1, sum(total <= max_tokens for total in totals))


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


class TopBlocks:
    """The `top_k` tokens of the best-scored blocks: one selection for all layers, or one per layer.

    With one per layer, a layer without scoring heads gets the selection of all heads together.
    """

    def __init__(self, scorer: BlockScorer, layout: RowLayout, block: int, top_k: int, by_layer: bool) -> None:
        self._scorer, self._layout, self._block, self._by_layer = scorer, layout, block, by_layer
        self._max_blocks = max(1, top_k // block)

    def select(self, memory: Memory, suffix: PromptSuffix, layers: Sequence[int]) -> dict[int, SelectedTokens]:
        """The tokens that each layer sees: the same number in all layers."""
        length = memory.text_tokens
        if self._max_blocks * self._block >= length:
            return dict.fromkeys(layers, SelectedTokens.everything(memory))
        by_head = self._scorer.score_blocks(memory, self._layout, suffix.question)
        shared = self._best(list(by_head.values()), length)
        if not self._by_layer:
            return dict.fromkeys(layers, shared)
        by_layer = {layer: _scores_of_layer(by_head, layer) for layer in layers}
        return {layer: self._best(scores, length) if scores else shared for layer, scores in by_layer.items()}

    def _best(self, scores_by_head: list[Tensor], length: int) -> SelectedTokens:
        scores = torch.stack(scores_by_head).sum(0)
        if self._by_layer:  # all layers see the same number of tokens, so a short last block is left out
            scores = scores[: length // self._block]
        best = scores.topk(min(self._max_blocks, scores.shape[0])).indices.tolist()
        spans = {(b * self._block, min(length, (b + 1) * self._block)): float(scores[b]) for b in best}
        return SelectedTokens.from_spans(spans, length)


def _scores_of_layer(by_head: dict[Head, Tensor], layer: int) -> list[Tensor]:
    return [scores for (at, _), scores in by_head.items() if at == layer]
