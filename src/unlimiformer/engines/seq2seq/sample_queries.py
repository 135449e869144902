"""Record real queries of a wrapped model over a memory. Approximate stores are built and measured with them.

The decoder generates a little by itself, and reads a few passages of the source as if it had generated them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...datastore import ExactStore, Hits
from ...memory import Memory
from .hooks import HookManager

_MAX_ROWS = 1 << 16  # rows of the memory that are searched: enough to be real, few enough to be quick
_NEW_TOKENS, _PASSAGES, _PASSAGE_TOKENS = 24, 8, 20
_MAX_POOLED = 8192


class _RecordingStore(ExactStore):
    """A store that records every query."""

    def __init__(self, store: ExactStore) -> None:
        super().__init__(store.states[:_MAX_ROWS], None if store.scales is None else store.scales[:_MAX_ROWS])
        self.queries: list[Tensor] = []

    def search(self, queries: Tensor, k: int) -> Hits:
        self.queries.append(queries.float().cpu())
        return super().search(queries, k)


@torch.no_grad()
def sample_queries(model: Any, hooks: HookManager, memory: Memory) -> list[Tensor]:
    """Folded queries (N, D), one tensor per call of a layer; none from layers whose queries cannot be folded."""
    store = _RecordingStore(memory.store)
    sample = Memory(store, memory.token_ids[:_MAX_ROWS], None, max(2, memory.windows), first_window=memory.first_window)
    outputs = hooks.encoder_output([sample])
    device = outputs[0].device
    mask = torch.ones((1, 1), dtype=torch.long, device=device)
    inputs = {"encoder_outputs": outputs, "attention_mask": mask}
    model.generate(**inputs, max_new_tokens=_NEW_TOKENS, do_sample=False, num_beams=1)
    vocabulary_size = model.get_output_embeddings().weight.shape[0]
    start_id = decoder_start_id(model) or 0
    for passage in range(_PASSAGES):
        start = len(memory) * passage // _PASSAGES
        tokens = memory.token_ids[start : start + _PASSAGE_TOKENS].long() % vocabulary_size
        ids = torch.cat((torch.tensor([start_id]), tokens))[None].to(device)
        model(**inputs, decoder_input_ids=ids, use_cache=False)
    return store.queries


def pool_queries(calls: list[Tensor]) -> Tensor:
    """Queries (M, D) of many calls, shuffled so that every part of them has all layers and heads; at most 8,192."""
    queries = torch.cat(calls)
    order = torch.randperm(queries.shape[0], generator=torch.Generator().manual_seed(0))
    return queries[order[:_MAX_POOLED]]


def decoder_start_id(model: Any) -> int | None:
    """The token with which the decoder begins; None if neither config names one."""
    ids = (getattr(config, "decoder_start_token_id", None) for config in (model.generation_config, model.config))
    return next((token_id for token_id in ids if token_id is not None), None)
