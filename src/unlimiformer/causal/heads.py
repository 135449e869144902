"""Finds the heads of a model that retrieve: those which, given an excerpt of a page, look at the place it is from.

The page is of random tokens, so that no language and no text is needed. Found once for a model, and kept.
"""

from __future__ import annotations

import json

import torch

from ..adapters.decoder_only import DecoderOnly
from ..datastore import ExactStore
from ..fingerprint import model_digest
from ..memory import Memory
from ..paths import cache_folder
from .layout import Head, Layout
from .looking import Lookout

_PAGE, _EXCERPTS, _WORDS, _LEAD = 1024, 24, 10, 8
HEADS = 8


def retrieving_heads(decoder: DecoderOnly, block: int, count: int = HEADS) -> list[Head]:
    """The `count` heads that find most excerpts, best first; as they were found before, if they were."""
    digest = model_digest(decoder.model.config, decoder.backbone)
    kept = cache_folder() / "heads" / f"{digest[:32]}-{block}.json"
    try:
        ranked = [(int(layer), int(head)) for layer, head in json.loads(kept.read_text())]
    except (OSError, ValueError, TypeError):
        ranked = rank_heads(decoder, block)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(ranked))
        except OSError:  # a read-only machine finds them again next time
            pass
    return ranked[:count]


@torch.no_grad()
def rank_heads(decoder: DecoderOnly, block: int) -> list[Head]:
    """All heads, those that find most excerpts first."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = decoder.model.get_input_embeddings().num_embeddings
    size = min(_PAGE, decoder.limit // 2)
    page = torch.randint(vocabulary, (_LEAD + size,), generator=generator)
    places = torch.randint(size - _WORDS, (_EXCERPTS,), generator=generator).tolist()
    heads = [(view.layer, head) for view in decoder.attentions for head in range(view.heads)]
    layout = Layout.for_heads(decoder, heads)
    rows = layout.rows(decoder.inputs(page[None], range(len(decoder.attentions))))[0]
    memory = Memory(ExactStore(rows), page, None, 2, _LEAD)
    lookout = Lookout(decoder, heads, block)
    scores = dict.fromkeys(heads, 0.0)
    for at in places:
        right = sorted({at // block, (at + _WORDS - 1) // block})
        for head, wanted in lookout.survey(memory, layout, page[_LEAD + at : _LEAD + at + _WORDS]).items():
            share = float(wanted[right].sum() / wanted.sum().clamp_min(1e-6))
            scores[head] += (int(wanted.argmax()) in right) + 1e-3 * share
    return sorted(heads, key=lambda head: -scores[head])
