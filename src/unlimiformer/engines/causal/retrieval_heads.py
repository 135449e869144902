"""Find the retrieval heads of a model: those that, given an excerpt of a page, attend to where it came from.

The page consists of random tokens, so no language and no text is needed. The ranking is cached for each model.
"""

from __future__ import annotations

import torch

from ...adapters.causal import CausalAdapter
from ...datastore import ExactStore
from ...memory import Memory
from ...memory.fingerprint import model_digest
from ..head_ranking import Head, cached_ranking
from .block_scorer import BlockScorer
from .row_layout import RowLayout

_BLOCKS, _TRIALS, _EXCERPT, _PREFIX = 16, 24, 10, 8


def retrieval_heads(decoder: CausalAdapter, block: int) -> list[Head]:
    """All heads, best first; the ranking is read from the cache if it is there."""
    name = f"{model_digest(decoder.model.config, decoder.backbone)[:32]}-{block}"
    return cached_ranking(name, _all_heads(decoder), lambda: rank_heads(decoder, block))


@torch.no_grad()
def rank_heads(decoder: CausalAdapter, block: int) -> list[Head]:
    """All heads, sorted by how many excerpts they find."""
    generator = torch.Generator().manual_seed(0)
    vocabulary_size = decoder.model.get_input_embeddings().num_embeddings
    page = torch.randint(vocabulary_size, (_PREFIX + _BLOCKS * block,), generator=generator)
    length = min(_EXCERPT, block)
    heads = _all_heads(decoder)
    layout = RowLayout.for_heads(decoder, heads)
    rows = layout.rows(decoder.inputs(page[None], range(len(decoder.attentions))))[0]
    memory = Memory(ExactStore(rows), page, None, 2, _PREFIX)
    scorer = BlockScorer(decoder, heads, block)
    successes = dict.fromkeys(heads, 0.0)
    for trial in range(_TRIALS):
        right = trial % _BLOCKS
        start = _PREFIX + right * block + int(torch.randint(block - length + 1, (1,), generator=generator))
        for head, scores in scorer.score_blocks(memory, layout, page[start : start + length]).items():
            share = float(scores[right] / scores.sum().clamp_min(1e-6))  # breaks ties
            successes[head] += (int(scores.argmax()) == right) + 1e-3 * share
    return sorted(heads, key=lambda head: -successes[head])


def _all_heads(decoder: CausalAdapter) -> list[Head]:
    return [(view.layer, head) for view in decoder.attentions for head in range(view.heads)]
