"""The plain decoder-only model over as much of a document as its context holds: the baseline of every comparison."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ...adapters.causal import CausalAdapter
from .kv_cache import PrefixReader, fill_cache
from .prompts import PromptTemplate


class TruncatedDocument:
    """One document, read once by the plain model; its cache is copied for every question.

    Parameters
    ----------
    prefix : (n,) token ids before the text.
    room : number of tokens of the text that are read.
    prefix_reader : reads the prefix, unless it has just read the same.
    """

    def __init__(
        self,
        decoder: CausalAdapter,
        template: PromptTemplate,
        tokenizer: Any,
        text: str,
        prefix: Tensor,
        room: int,
        prefix_reader: PrefixReader,
    ) -> None:
        self._model, self._template, self._tokenizer = decoder.model, template, tokenizer
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        read = torch.tensor(ids)[:room]
        self._ids = torch.cat((prefix, read))
        with torch.no_grad():
            by_layer = [[layer] for layer in prefix_reader.read(prefix)] if prefix.numel() else []
            self._cache = fill_cache(decoder.model.config, by_layer, repeats=1)
            decoder.backbone(read[None].to(decoder.device), past_key_values=self._cache, use_cache=True)

    def ask(self, question: str, **generation: Any) -> str:
        """Answer a question about the beginning of the document."""
        ids = torch.cat((self._ids, self._template.suffix(question).ids))[None].to(self._model.device)
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(max(generation.get(name) or 1 for name in ("num_beams", "num_return_sequences")))
        arguments = {"past_key_values": cache, "attention_mask": torch.ones_like(ids), **generation}
        sequences = self._model.generate(ids, **arguments)
        return self._tokenizer.decode(sequences[0, ids.shape[1] :], skip_special_tokens=True)
