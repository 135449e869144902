"""Which tokens of a document a question is answered from. One small class a policy; `engines` knows what to do with
what they choose.

Shapes: S tokens of the document, n blocks, m chosen tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...memory.memory import Memory
from .block_scorer import BlockScorer
from .layout import Head, Layout
from .prompts import Prompts, PromptSuffix

_CANDIDATES = 12  # blocks that are looked at closely
_NEARLY = 1.0  # how much less likely than the best block (in logarithms) one may make the question that is read with it


@dataclass(frozen=True)
class SelectedTokens:
    """Tokens (m,) of the document, in order, and how much each was wanted (m,), of sum one."""

    tokens: Tensor
    weights: Tensor

    @classmethod
    def everything(cls, memory: Memory) -> SelectedTokens:
        """The whole document."""
        length = memory.text_tokens
        return cls(torch.arange(length), torch.full((length,), 1 / length))

    @classmethod
    def spans(cls, wanted: dict[tuple[int, int], float], length: int) -> SelectedTokens:
        """The tokens of some stretches, and the share that each was wanted."""
        weights = torch.zeros(length)
        for (start, stop), score in wanted.items():
            weights[start:stop] += max(score, 1e-9) / (stop - start)
        tokens = weights.nonzero()[:, 0]
        return cls(tokens, weights[tokens] / weights[tokens].sum())


class Reread:
    """The blocks that the retrieving heads want and that make the question likely; they are then read again, together.

    As many as are nearly as good as the best, so that a fact is read alone and a wide question gets its share.
    """

    def __init__(self, block_scorer: BlockScorer, layout: Layout, block: int, top_k: int, prompts: Prompts) -> None:
        self._block_scorer, self._layout, self._block, self._prompts = block_scorer, layout, block, prompts
        self._most = max(1, top_k // block)

    def choose(self, memory: Memory, tail: PromptSuffix) -> SelectedTokens:
        """The tokens that this question is answered from."""
        length = memory.text_tokens
        if memory.windows == 1 or length <= self._block:
            return SelectedTokens.everything(memory)
        surveyed = torch.stack(list(self._block_scorer.score_blocks(memory, self._layout, tail.question).values())).sum(
            0
        )
        best = surveyed.topk(min(max(_CANDIDATES, self._most), surveyed.shape[0])).indices.tolist()
        document = memory.text_ids
        spans = [self._span(number, document) for number in best]
        texts = [document[start:stop] for start, stop in spans]
        likely = self._block_scorer.rerank(memory.prefix_ids, texts, tail.before, tail.question)
        order = likely.argsort(descending=True)[: self._most].tolist()
        shares = (likely - likely.max()).exp()
        kept = {spans[i]: float(shares[i]) for i in order if likely[i] >= likely.max() - _NEARLY}
        return SelectedTokens.spans(kept, length)

    def _span(self, number: int, document: Tensor) -> tuple[int, int]:
        """A block's tokens, and those around it that complete its first and last sentence, or as many as it has."""
        start, stop = number * self._block, min(document.shape[0], (number + 1) * self._block)
        first, last = max(0, start - self._block), min(document.shape[0], stop + self._block)
        while start > first and not self._prompts.ends_sentence(int(document[start - 1])):
            start -= 1
        while stop < last and not self._prompts.ends_sentence(int(document[stop - 1])):
            stop += 1
        return start, stop


class Blocks:
    """As many blocks as there is room for, by a survey; one choice for all layers, or each layer's own heads choose.

    A layer that has no heads that choose sees what all others chose.
    """

    def __init__(self, block_scorer: BlockScorer, layout: Layout, block: int, top_k: int, by_layer: bool) -> None:
        self._block_scorer, self._layout, self._block, self._by_layer = block_scorer, layout, block, by_layer
        self._most = max(1, top_k // block)

    def choose(self, memory: Memory, tail: PromptSuffix, layers: Sequence[int]) -> dict[int, SelectedTokens]:
        """The tokens that each layer sees: the same number in all."""
        length = memory.text_tokens
        if self._most * self._block >= length:
            return dict.fromkeys(layers, SelectedTokens.everything(memory))
        surveyed = self._block_scorer.score_blocks(memory, self._layout, tail.question)
        if not self._by_layer:
            return dict.fromkeys(layers, self._best(list(surveyed.values()), length))
        together = self._best(list(surveyed.values()), length)
        found = {layer: _of_layer(surveyed, layer) for layer in layers}
        return {layer: self._best(wanted, length) if wanted else together for layer, wanted in found.items()}

    def _best(self, surveyed: list[Tensor], length: int) -> SelectedTokens:
        wanted = torch.stack(surveyed).sum(0)
        if self._by_layer:  # all layers see as many tokens: a short last block is nobody's
            wanted = wanted[: length // self._block]
        best = wanted.topk(min(self._most, wanted.shape[0])).indices.tolist()
        spans = {(b * self._block, min(length, (b + 1) * self._block)): float(wanted[b]) for b in best}
        return SelectedTokens.spans(spans, length)


def _of_layer(surveyed: dict[Head, Tensor], layer: int) -> list[Tensor]:
    return [wanted for (at, _), wanted in surveyed.items() if at == layer]
