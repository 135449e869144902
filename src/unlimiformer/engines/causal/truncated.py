"""The plain decoder-only model over as much of a document as its context holds: the baseline of every comparison."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .generation import repeats_per_row
from .kv_cache import fill_cache

if TYPE_CHECKING:
    from .engine import CausalEngine


class TruncatedDocument:
    """One document, read once by the plain model; its cache is copied for every question.

    Parameters
    ----------
    prefix : (n,) token ids before the text.
    room : number of tokens of the text that are read.
    """

    def __init__(self, engine: CausalEngine, text: str, prefix: Tensor, room: int) -> None:
        self._engine = engine
        read = engine.tokenize(text)[:room]
        self._ids = torch.cat((prefix, read))
        decoder = engine.decoder
        with torch.no_grad():
            by_layer = [[layer] for layer in engine.prefix_reader.read(prefix)] if prefix.numel() else []
            self._cache = fill_cache(decoder.model.config, by_layer, repeats=1)
            decoder.backbone(read[None].to(decoder.device), past_key_values=self._cache, use_cache=True)

    def ask(self, question: str, **generation: Any) -> str:
        """Answer a question about the beginning of the document."""
        engine = self._engine
        ids = torch.cat((self._ids, engine.template.suffix(question).ids))[None]
        engine.check_context(ids.shape[1])
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(repeats_per_row(engine.model, generation))
        sequences = engine.call_generate(ids, torch.ones_like(ids), generation, cache)
        return engine.tokenizer.decode(sequences[0, ids.shape[1] :], skip_special_tokens=True)
