"""The plain model over as much of a document as its window holds: what everything else is compared with."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import DynamicCache

from ...adapters.causal import CausalAdapter
from .prompts import Prompts

_TAIL = 128  # tokens that a question and what surrounds it may have


class Truncated:
    """One document, read once by the plain model, with room for an answer; its cache is copied for every question."""

    def __init__(self, decoder: CausalAdapter, prompts: Prompts, tokenizer: Any, text: str, answer: int) -> None:
        self._model, self._prompts, self._tokenizer = decoder.model, prompts, tokenizer
        head = prompts.head(None)
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        self._ids = torch.cat((head, torch.tensor(ids)[: max(1, decoder.limit - _TAIL - answer - head.shape[0])]))
        self._cache = DynamicCache()
        with torch.no_grad():
            decoder.backbone(self._ids[None].to(decoder.device), past_key_values=self._cache, use_cache=True)

    def ask(self, question: str, **generation: Any) -> str:
        """Its answer."""
        ids = torch.cat((self._ids, self._prompts.tail(question).ids))[None].to(self._model.device)
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(max(generation.get(name) or 1 for name in ("num_beams", "num_return_sequences")))
        call = {"past_key_values": cache, "attention_mask": torch.ones_like(ids), **generation}
        made = self._model.generate(ids, **call)
        return self._tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
