"""Which tokens of a document a question is answered from. One small class a policy; `engines` knows what to do with
what they choose.

Shapes: S tokens of the document, n blocks, m chosen tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory import Memory
from .layout import Head, Layout
from .looking import Lookout

_CANDIDATES = 8  # blocks that are looked at closely
_NEARLY = 0.6  # of the best block's score: what a block needs to be read beside it


@dataclass(frozen=True)
class Chosen:
    """Tokens (m,) of the document, in order, and how much each was wanted (m,), of sum one."""

    tokens: Tensor
    weights: Tensor

    @classmethod
    def everything(cls, memory: Memory) -> Chosen:
        """The whole document."""
        length = len(memory) - memory.prefix_tokens
        return cls(torch.arange(length), torch.full((length,), 1 / length))

    @classmethod
    def blocks(cls, wanted: dict[int, float], block: int, length: int, margin: int = 0) -> Chosen:
        """The tokens of some blocks, with a margin around each, and the share that each block was wanted."""
        weights = torch.zeros(length)
        seen = torch.zeros(length, dtype=torch.bool)
        for number, score in wanted.items():
            start, stop = number * block, min(length, (number + 1) * block)
            weights[start:stop] += max(score, 1e-9) / (stop - start)
            seen[max(0, start - margin) : stop + margin] = True
        tokens = seen.nonzero()[:, 0]
        return cls(tokens, weights[tokens] / weights[tokens].sum())


class Reread:
    """The blocks that the retrieving heads want, by a survey and a closer look; they are then read again, together.

    As many as are nearly as good as the best, so that a fact is read alone and a wide question gets its share.
    """

    def __init__(self, lookout: Lookout, layout: Layout, block: int, top_k: int) -> None:
        self._lookout, self._layout, self._block = lookout, layout, block
        self._most = max(1, top_k // block)

    def choose(self, memory: Memory, question: Tensor) -> Chosen:
        """The tokens that this question is answered from."""
        length = len(memory) - memory.prefix_tokens
        if memory.windows == 1 or length <= self._block:
            return Chosen.everything(memory)
        surveyed = sum(self._lookout.survey(memory, self._layout, question).values())
        assert isinstance(surveyed, Tensor)
        best = surveyed.topk(min(_CANDIDATES, surveyed.shape[0])).indices.sort().values.tolist()
        ids = memory.token_ids.long()
        lead, document = ids[: memory.prefix_tokens], ids[memory.prefix_tokens :]
        texts = [document[number * self._block : (number + 1) * self._block] for number in best]
        looked = self._lookout.look_closer(lead, texts, question)
        wanted = _share(surveyed[best]) + _share(looked)
        order = wanted.argsort(descending=True)[: self._most].tolist()
        kept = {best[i]: float(wanted[i]) for i in order if wanted[i] >= _NEARLY * wanted.max()}
        return Chosen.blocks(kept, self._block, length, margin=self._block // 4)


class Blocks:
    """As many blocks as there is room for, by a survey; one choice for all layers, or each layer's own heads choose."""

    def __init__(self, lookout: Lookout, layout: Layout, block: int, top_k: int, by_layer: bool) -> None:
        self._lookout, self._layout, self._block, self._by_layer = lookout, layout, block, by_layer
        self._most = max(1, top_k // block)

    def choose(self, memory: Memory, question: Tensor, layers: Sequence[int]) -> dict[int, Chosen]:
        """The tokens that each layer sees: the same number in all."""
        length = len(memory) - memory.prefix_tokens
        if self._most * self._block >= length:
            return dict.fromkeys(layers, Chosen.everything(memory))
        surveyed = self._lookout.survey(memory, self._layout, question)
        if not self._by_layer:
            return dict.fromkeys(layers, self._best(list(surveyed.values()), length))
        return {layer: self._best(_of_layer(surveyed, layer), length) for layer in layers}

    def _best(self, surveyed: list[Tensor], length: int) -> Chosen:
        wanted = torch.stack(surveyed).sum(0)
        if self._by_layer:  # all layers see as many tokens: a short last block is nobody's
            wanted = wanted[: length // self._block]
        best = wanted.topk(min(self._most, wanted.shape[0])).indices.tolist()
        return Chosen.blocks({number: float(wanted[number]) for number in best}, self._block, length)


def _of_layer(surveyed: dict[Head, Tensor], layer: int) -> list[Tensor]:
    return [wanted for (at, _), wanted in surveyed.items() if at == layer]


def _share(scores: Tensor) -> Tensor:
    return scores / scores.sum().clamp_min(1e-9)
