"""Select the tokens of a document from which a question is answered. `generation.py` decides what is done with them.

Shapes: S tokens of the document, n blocks, m selected tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...memory import Memory
from ...text.passages import PassageSplitter
from ..head_ranking import Head
from ..passage_ranking import PassageRanker, RankedPassages
from .block_scorer import BlockScorer
from .prompts import PromptSuffix
from .row_layout import RowLayout


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
    """The best passages: those that the retrieval heads attend to and that share words with the question."""

    def __init__(
        self,
        scorer: BlockScorer,
        layout_of: Callable[[Memory], RowLayout],
        block: int,
        splitter: PassageSplitter,
        tokenize: Callable[[str], Tensor],
    ) -> None:
        self._scorer, self._layout_of, self._block, self._tokenize = scorer, layout_of, block, tokenize
        self._ranker = PassageRanker(splitter)

    def select(self, memory: Memory, suffix: PromptSuffix, sizes: Sequence[int]) -> list[SelectedTokens]:
        """For each size the best passages, together at most so many tokens; each size once if they are the same."""
        length = memory.text_tokens
        if memory.windows == 1 or length <= min(sizes):
            return [SelectedTokens.everything(memory)]
        ranked = self.rank(memory, suffix)
        contexts = {len(context.spans): context for context in (ranked.first(size) for size in sorted(sizes))}
        return [_selected(context, length) for context in contexts.values()]

    def question(self, memory: Memory, suffix: PromptSuffix) -> str:
        """What the model is asked: the question, without the name of a section in which its passages are searched."""
        return suffix.text if memory.windows == 1 else self._ranker.query(memory, suffix.text).question

    def rank(self, memory: Memory, suffix: PromptSuffix) -> RankedPassages:
        """All passages among which a question is searched, best first."""
        query = self._ranker.query(memory, suffix.text)
        question = suffix.question if query.text == suffix.text else self._tokenize(query.text)
        by_head = self._scorer.score_blocks(memory, self._layout_of(memory), question)
        attention = torch.stack(list(by_head.values())).sum(0).repeat_interleave(self._block)
        return self._ranker.rank(memory, query, attention)


def _selected(passages: RankedPassages, length: int) -> SelectedTokens:
    shares = (passages.scores - passages.scores.max()).exp().tolist()
    return SelectedTokens.from_spans(dict(zip(passages.spans, shares, strict=True)), length)


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
