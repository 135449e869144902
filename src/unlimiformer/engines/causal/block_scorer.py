"""Which blocks of a document a question wants.

A survey asks the kept keys of every block, as if each stood right before the question: how much do the heads that
retrieve want it? The question stands twice: in its second copy every word knows all of it. A closer look reads each of
the best few in the plain window: how likely does it make the question?

Shapes: T tokens of the question, S of the document, n blocks, d of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...adapters.causal import CausalAdapter
from ...memory.memory import Memory
from .layout import Head, Layout, group_of

_ROWS = 1 << 13  # of a memory, surveyed at once
_LOGITS = 1 << 26  # numbers that are held at once
_FAINT = 2.0  # standard deviations above the mean block, below which a score says nothing


class BlockScorer:
    """Some heads of a model, and what they look for."""

    def __init__(self, decoder: CausalAdapter, heads: Sequence[Head], block: int) -> None:
        self._decoder, self._heads, self._block = decoder, heads, block
        self._layers = sorted({layer for layer, _ in heads})

    def score_blocks(self, memory: Memory, layout: Layout, question: Tensor) -> dict[Head, Tensor]:
        """How much each head wants each block (n,) of a memory, for a question (T,)."""
        queries = self._queries(memory.prefix_ids, question)
        return {head: clear(scores) for head, scores in self._scores(memory, layout, queries).items()}

    def rerank(self, lead: Tensor, blocks: Sequence[Tensor], before: Tensor, question: Tensor) -> Tensor:
        """The logarithm of the question's probability (n,) behind each block; `before` stands between them."""
        found = torch.empty(len(blocks))
        lengths = torch.tensor([block.shape[0] for block in blocks])
        for length in lengths.unique():  # blocks of one length are read together, so that nothing is padded
            mine = (lengths == length).nonzero()[:, 0].tolist()
            size = self._at_once(question)
            for some in (mine[i : i + size] for i in range(0, len(mine), size)):
                found[some] = self._likelihood([blocks[i] for i in some], lead, before, question)
        return found

    def _likelihood(self, blocks: Sequence[Tensor], lead: Tensor, before: Tensor, question: Tensor) -> Tensor:
        ids = torch.stack([torch.cat((lead, block, before, question)) for block in blocks]).to(self._decoder.device)
        logits = self._decoder.model(ids, use_cache=False, logits_to_keep=question.shape[0] + 1).logits
        words = ids[:, -question.shape[0] :]
        unlikely = torch.nn.functional.cross_entropy(logits[:, :-1].mT.float(), words, reduction="none")
        return -unlikely.sum(-1).cpu()

    def _at_once(self, question: Tensor) -> int:
        vocabulary = self._decoder.model.get_input_embeddings().num_embeddings
        return max(1, _LOGITS // (vocabulary * question.shape[0]))

    def _queries(self, lead: Tensor, question: Tensor) -> dict[Head, Tensor]:
        """Queries (T, d) before rotation."""
        inputs = self._decoder.inputs(torch.cat((lead, question, question))[None], self._layers)
        found: dict[Head, Tensor] = {}
        for layer in self._layers:
            queries = self._decoder.attentions[layer].project(inputs[layer][:, -question.shape[0] :]).queries[0]
            found |= {(at, head): queries[head] for at, head in self._heads if at == layer}
        return found

    def _scores(self, memory: Memory, layout: Layout, queries: dict[Head, Tensor]) -> dict[Head, Tensor]:
        """The best score (T, n) that a word of the question has with a token of each block."""
        first, block = memory.prefix_tokens, self._block
        at_once = max(1, _ROWS // block) * block
        best: dict[Head, list[Tensor]] = {head: [] for head in queries}
        for start in range(first, len(memory), at_once):
            rows = memory.store.rows_at(slice(start, min(len(memory), start + at_once))).to(self._decoder.device)
            places = torch.arange(rows.shape[0], device=rows.device) % block
            short = -rows.shape[0] % block
            for layer in self._layers:
                view = self._decoder.attentions[layer]
                keys = layout.keys(rows, layer)
                turned = {group: view.rotate(key.float(), places) for group, key in keys.items()}
                for head, query in queries.items():
                    if head[0] != layer:
                        continue
                    behind = torch.arange(query.shape[0], device=rows.device) + block
                    scores = view.rotate(query.float(), behind) @ turned[group_of(view, head[1])].T * view.scaling
                    scores = torch.nn.functional.pad(scores, (0, short), value=float("-inf"))
                    best[head].append(scores.unflatten(1, (-1, block)).amax(-1).cpu())
        return {head: torch.cat(parts, dim=1) for head, parts in best.items()}


def clear(scores: Tensor) -> Tensor:
    """What stands out of the scores (T, n) of a question's words with n blocks: (n,)."""
    blocks = scores.shape[1]
    if blocks == 1:
        return torch.ones(1)
    farthest = (blocks - 1) / blocks**0.5  # that one of so few can be from their mean
    spread = scores.std(dim=1, keepdim=True).clamp_min(1e-6)
    return ((scores - scores.mean(dim=1, keepdim=True)) / spread - min(_FAINT, farthest / 2)).clamp_min(0).sum(0)
