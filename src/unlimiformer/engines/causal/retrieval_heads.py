"""Finds the heads of a model that retrieve: those which, given an excerpt of a page, look at the place it is from.

The page is of random tokens, so that no language and no text is needed. Found once for a model, and kept.
"""

from __future__ import annotations

import json

import torch

from ...adapters.causal import CausalAdapter
from ...datastore import ExactStore
from ...memory.fingerprint import model_digest
from ...memory.memory import Memory
from ...utils.files import cache_folder
from .block_scorer import BlockScorer
from .layout import Head, Layout

_BLOCKS, _CASES, _WORDS, _LEAD = 16, 24, 10, 8


def retrieving_heads(decoder: CausalAdapter, block: int) -> list[Head]:
    """All heads, best first; as they were ranked before, if they were."""
    digest = model_digest(decoder.model.config, decoder.backbone)
    kept = cache_folder() / "heads" / f"{digest[:32]}-{block}.json"
    try:
        return [(int(layer), int(head)) for layer, head in json.loads(kept.read_text())]
    except (OSError, ValueError, TypeError):
        ranked = rank_heads(decoder, block)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(ranked))
    except OSError:  # a read-only machine finds them again next time
        pass
    return ranked


@torch.no_grad()
def rank_heads(decoder: CausalAdapter, block: int) -> list[Head]:
    """All heads, those that find most excerpts first."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = decoder.model.get_input_embeddings().num_embeddings
    page, words = torch.randint(vocabulary, (_LEAD + _BLOCKS * block,), generator=generator), min(_WORDS, block)
    heads = [(view.layer, head) for view in decoder.attentions for head in range(view.heads)]
    layout = Layout.for_heads(decoder, heads)
    rows = layout.rows(decoder.inputs(page[None], range(len(decoder.attentions))))[0]
    memory = Memory(ExactStore(rows), page, None, 2, _LEAD)
    block_scorer = BlockScorer(decoder, heads, block)
    scores = dict.fromkeys(heads, 0.0)
    for case in range(_CASES):
        right = case % _BLOCKS
        at = _LEAD + right * block + int(torch.randint(block - words + 1, (1,), generator=generator))
        for head, wanted in block_scorer.score_blocks(memory, layout, page[at : at + words]).items():
            share = float(wanted[right] / wanted.sum().clamp_min(1e-6))  # tells heads apart that find as many
            scores[head] += (int(wanted.argmax()) == right) + 1e-3 * share
    return sorted(heads, key=lambda head: -scores[head])
