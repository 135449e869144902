"""Which blocks of a document a question wants, by the attention of the heads that retrieve.

A survey asks the kept keys of every block, as if each stood right before the question. A closer look reads the best few
together in the plain window and asks the same heads again. The question stands twice each time: in its second copy every
word knows all of the question.

Shapes: T tokens of the question, S of the document, n blocks, H heads, d of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..adapters.decoder_only import DecoderOnly
from ..attention import cap
from ..memory import Memory
from .layout import Head, Layout, group_of

_ROWS = 1 << 13  # of a memory, surveyed at once
_FAINT = 2.0  # standard deviations above the mean block, below which a score says nothing


class Lookout:
    """Some heads of a model, and what they look for."""

    def __init__(self, decoder: DecoderOnly, heads: Sequence[Head], block: int) -> None:
        self._decoder, self.heads, self._block = decoder, heads, block
        self._layers = sorted({layer for layer, _ in heads})

    def survey(self, memory: Memory, layout: Layout, question: Tensor) -> dict[Head, Tensor]:
        """How much each head wants each block (n,) of a memory, for a question (T,)."""
        lead = memory.token_ids[: memory.prefix_tokens].long()
        queries = self._queries(lead, question)
        return {head: clear(scores) for head, scores in self._scores(memory, layout, queries).items()}

    def look_closer(self, lead: Tensor, blocks: Sequence[Tensor], question: Tensor) -> Tensor:
        """The share of attention (n,) that blocks get when they are read together: each head's strongest, their mean."""
        ids = torch.cat((lead, *blocks, question, question))
        ends = torch.tensor([block.shape[0] for block in blocks]).cumsum(0) + lead.shape[0]
        starts = [lead.shape[0], *ends[:-1].tolist()]
        inputs = self._decoder.inputs(ids[None], self._layers)
        positions = torch.arange(ids.shape[0], device=self._decoder.device)
        asked = slice(ids.shape[0] - question.shape[0], None)
        unseen = positions[None] > positions[asked, None]
        shares = []
        for layer, head in self.heads:
            view = self._decoder.attentions[layer]
            projected = view.project(inputs[layer])
            query = view.rotate(projected.queries[0, head], positions)[asked]
            key = view.rotate(projected.keys[0, group_of(view, head)], positions)
            scores = cap(query.float() @ key.float().T * view.scaling, self._decoder.softcap())
            weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)  # (T, all)
            spans = zip(starts, ends.tolist(), strict=True)
            shares.append(torch.stack([weights[:, a:b].sum(-1).max() for a, b in spans]))
        return torch.stack(shares).mean(0).cpu()

    def _queries(self, lead: Tensor, question: Tensor) -> dict[Head, Tensor]:
        """Queries (T, d) before rotation."""
        inputs = self._decoder.inputs(torch.cat((lead, question, question))[None], self._layers)
        found: dict[Head, Tensor] = {}
        for layer in self._layers:
            queries = self._decoder.attentions[layer].project(inputs[layer][:, -question.shape[0] :]).queries[0]
            found |= {(at, head): queries[head] for at, head in self.heads if at == layer}
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
    spread = scores.std(dim=1, keepdim=True).clamp_min(1e-6) if scores.shape[1] > 1 else torch.ones(1)
    return ((scores - scores.mean(dim=1, keepdim=True)) / spread - _FAINT).clamp_min(0).sum(0)
