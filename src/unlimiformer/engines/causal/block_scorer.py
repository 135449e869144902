"""Score the blocks of a document for a question.

`score_blocks` compares the question with the stored keys of every block, as if each stood right before the question:
how strongly do the retrieval heads attend to it? The question is given twice, because in its second copy every word has
seen all of it.

Shapes: T tokens of the question, S of the document, n blocks, d of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...adapters.causal import CausalAdapter
from ...memory import Memory
from ..head_ranking import Head
from .row_layout import RowLayout, group_of

_ROWS_AT_ONCE = 1 << 13
_THRESHOLD = 2.0  # standard deviations above the mean block, below which a score counts as noise


class BlockScorer:
    """Scores blocks with some heads of a model."""

    def __init__(self, decoder: CausalAdapter, heads: Sequence[Head], block: int) -> None:
        self._decoder, self._heads, self._block = decoder, heads, block
        self._layers = sorted({layer for layer, _ in heads})

    def score_blocks(self, memory: Memory, layout: RowLayout, question: Tensor) -> dict[Head, Tensor]:
        """Score (n,) of each block of a memory for a question (T,), by head."""
        queries = self._compute_queries(memory.prefix_ids, question)
        return {head: zscore(scores) for head, scores in self._best_scores(memory, layout, queries).items()}

    def _compute_queries(self, prefix: Tensor, question: Tensor) -> dict[Head, Tensor]:
        """Unrotated queries (T, d) by head."""
        inputs = self._decoder.inputs(torch.cat((prefix, question, question))[None], self._layers)
        queries: dict[Head, Tensor] = {}
        for layer in self._layers:
            projected = self._decoder.attentions[layer].project(inputs[layer][:, -question.shape[0] :]).queries[0]
            queries |= {(at, head): projected[head] for at, head in self._heads if at == layer}
        return queries

    def _best_scores(self, memory: Memory, layout: RowLayout, queries: dict[Head, Tensor]) -> dict[Head, Tensor]:
        """For each head, the best score (T, n) of every question token with a token of every block."""
        block = self._block
        rows_at_once = max(1, _ROWS_AT_ONCE // block) * block
        best: dict[Head, list[Tensor]] = {head: [] for head in queries}
        for start in range(memory.prefix_tokens, len(memory), rows_at_once):
            rows = memory.store.rows_at(slice(start, min(len(memory), start + rows_at_once))).to(self._decoder.device)
            positions = torch.arange(rows.shape[0], device=rows.device) % block
            padding = -rows.shape[0] % block
            for layer in self._layers:
                view = self._decoder.attentions[layer]
                keys = layout.keys(rows, layer)
                rotated = {group: view.rotate(key.float(), positions) for group, key in keys.items()}
                for head, query in queries.items():
                    if head[0] != layer:
                        continue
                    behind = torch.arange(query.shape[0], device=rows.device) + block
                    scores = view.rotate(query.float(), behind) @ rotated[group_of(view, head[1])].T * view.scaling
                    scores = torch.nn.functional.pad(scores, (0, padding), value=float("-inf"))
                    best[head].append(scores.unflatten(1, (-1, block)).amax(-1).cpu())
        return {head: torch.cat(parts, dim=1) for head, parts in best.items()}


def zscore(scores: Tensor) -> Tensor:
    """How far each block (n,) stands out of the scores (T, n), in standard deviations, summed over the question."""
    blocks = scores.shape[1]
    if blocks == 1:
        return torch.ones(1)
    largest = (blocks - 1) / blocks**0.5  # the largest possible z-score among so few blocks
    spread = scores.std(dim=1, keepdim=True).clamp_min(1e-6)
    standardized = (scores - scores.mean(dim=1, keepdim=True)) / spread
    return (standardized - min(_THRESHOLD, largest / 2)).clamp_min(0).sum(0)
