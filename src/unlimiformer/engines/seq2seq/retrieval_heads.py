"""Find the retrieval heads of a decoder's cross-attention: those that, given an excerpt of a page, attend to it there.

The page consists of random tokens, so no language and no text is needed. The ranking is cached for each model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...memory.fingerprint import model_digest
from ...provenance import Attention
from ..head_ranking import Head, cached_ranking

if TYPE_CHECKING:
    from .engine import Seq2SeqEngine

_PAGE, _EXCERPTS, _EXCERPT = 480, 16, 16  # tokens of a page, excerpts, and tokens of each


def retrieval_heads(engine: Seq2SeqEngine) -> list[Head]:
    """All heads, best first; the ranking is read from the cache if it is there."""
    heads = [(layer, head) for layer, view in enumerate(engine.cross_attentions) for head in range(view.heads)]
    name = f"{model_digest(engine.base.config, engine.base)[:32]}-cross"
    return cached_ranking(name, heads, lambda: rank_heads(engine))


@torch.no_grad()
def rank_heads(engine: Seq2SeqEngine) -> list[Head]:
    """All heads, sorted by how much of their attention falls on the excerpts."""
    generator = torch.Generator().manual_seed(0)
    vocabulary_size = engine.base.get_input_embeddings().num_embeddings
    page = torch.randint(vocabulary_size, (min(_PAGE, engine.window),), generator=generator)
    memory = engine.index_ids(page, page[:0])
    length = max(1, min(_EXCERPT, len(page) // 4))
    shares: dict[Head, float] = {}
    for start in range(0, len(page) - length + 1, max(length, len(page) // _EXCERPTS)):
        excerpt = torch.cat((engine.start_ids, page[start : start + length]))
        for layer, attention in engine.attention_of(memory, excerpt).items():
            inside = (attention.index >= start) & (attention.index < start + length)
            for head, share in enumerate((attention.weights * inside).sum((0, 2)).tolist()):
                shares[layer, head] = shares.get((layer, head), 0.0) + share
    return sorted(shares, key=lambda head: -shares[head])


def of_heads(layers: dict[int, Attention], heads: Sequence[Head]) -> dict[int, Attention]:
    """The attention of some heads."""
    kept = {layer: [head for at, head in heads if at == layer] for layer in layers}
    return {
        layer: Attention(attention.index[:, kept[layer]], attention.weights[:, kept[layer]])
        for layer, attention in layers.items()
        if kept[layer]
    }
