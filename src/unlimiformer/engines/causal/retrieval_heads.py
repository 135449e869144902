"""Find the retrieval heads of a model: those that, given an excerpt of a page, attend to where it came from.

The page consists of random tokens, so no language and no text is needed. The ranking is cached for each model.
"""

from __future__ import annotations

import json

import torch

from ...adapters.causal import CausalAdapter
from ...datastore import ExactStore
from ...memory import Memory
from ...memory.fingerprint import model_digest
from ...utils.files import cache_folder
from ...utils.jsonl import JSON_ERRORS
from .block_scorer import BlockScorer
from .row_layout import Head, RowLayout

_BLOCKS, _TRIALS, _EXCERPT, _PREFIX = 16, 24, 10, 8


def retrieval_heads(decoder: CausalAdapter, block: int) -> list[Head]:
    """All heads, best first; the ranking is read from the cache if it is there."""
    digest = model_digest(decoder.model.config, decoder.backbone)
    path = cache_folder() / "heads" / f"{digest[:32]}-{block}.json"
    try:
        stored = [(int(layer), int(head)) for layer, head in json.loads(path.read_text())]
    except (OSError, TypeError, *JSON_ERRORS):
        stored = []
    if sorted(stored) == sorted((view.layer, head) for view in decoder.attentions for head in range(view.heads)):
        return stored
    ranking = rank_heads(decoder, block)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(ranking))
    except OSError:  # without a writable cache they are ranked again next time
        pass
    return ranking


@torch.no_grad()
def rank_heads(decoder: CausalAdapter, block: int) -> list[Head]:
    """All heads, sorted by how many excerpts they find."""
    generator = torch.Generator().manual_seed(0)
    vocabulary_size = decoder.model.get_input_embeddings().num_embeddings
    page = torch.randint(vocabulary_size, (_PREFIX + _BLOCKS * block,), generator=generator)
    length = min(_EXCERPT, block)
    heads = [(view.layer, head) for view in decoder.attentions for head in range(view.heads)]
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
