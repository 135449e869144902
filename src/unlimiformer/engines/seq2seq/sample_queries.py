"""Real folded queries: what the heads of a wrapped model look for in a memory. Stores are built to serve them.

The decoder writes a little by itself, and reads a few passages of the source as if it had written them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...datastore import ExactStore, Hits
from ...memory.memory import Memory
from .hooks import HookManager

_ROWS = 1 << 16  # of the memory that is asked: enough to be real, few enough to be quick
_WRITTEN, _PASSAGES, _READ = 24, 8, 20
_MOST = 8192


class _Recording(ExactStore):
    """Notes every query that reaches it."""

    def __init__(self, store: ExactStore) -> None:
        super().__init__(store.states[:_ROWS], None if store.scales is None else store.scales[:_ROWS])
        self.heard: list[Tensor] = []

    def search(self, queries: Tensor, k: int) -> Hits:
        self.heard.append(queries.float().cpu())
        return super().search(queries, k)


@torch.no_grad()
def sample_queries(model: Any, hooks: HookManager, memory: Memory) -> list[Tensor]:
    """Folded queries (N, D) of one layer's call after the other; none of layers whose queries cannot be folded."""
    recording = _Recording(memory.store)
    part = Memory(recording, memory.token_ids[:_ROWS], None, max(2, memory.windows), first_window=memory.first_window)
    starts = (getattr(config, "decoder_start_token_id", None) for config in (model.generation_config, model.config))
    start = next((token for token in starts if token is not None), 0)
    outputs = hooks.output([part])
    device = outputs[0].device
    mask = torch.ones((1, 1), dtype=torch.long, device=device)
    common = {"encoder_outputs": outputs, "attention_mask": mask}
    model.generate(**common, max_new_tokens=_WRITTEN, do_sample=False, num_beams=1)
    vocabulary = model.get_output_embeddings().weight.shape[0]
    for number in range(_PASSAGES):
        at = len(memory) * number // _PASSAGES
        passage = memory.token_ids[at : at + _READ].long() % vocabulary
        ids = torch.cat((torch.tensor([start]), passage))[None].to(device)
        model(**common, decoder_input_ids=ids, use_cache=False)
    return recording.heard


def pool_queries(calls: list[Tensor]) -> Tensor:
    """Queries (M, D) of many calls, shuffled so that every part of them has all layers and heads; not too many."""
    queries = torch.cat(calls)
    return queries[torch.randperm(queries.shape[0], generator=torch.Generator().manual_seed(0))[:_MOST]]
