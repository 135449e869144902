"""The paper's way in a decoder-only model: each head, at each step, adds its own best tokens of the document to the
head and tail of the prompt, under one softmax.

Shapes: R rows of one memory, H heads, T new tokens, L local tokens, S of the document, K hits, d of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ...adapters.causal import CausalAdapter, SelfAttention, attention_function
from ...functional import cap, merge
from ...memory.memory import Memory
from .layout import Layout
from .positions import Consecutive, Positions

NAME = "unlimiformer-top-k"
_SCORES = 1 << 25  # numbers in one array of scores
_active: list[TopK] = []


@dataclass(frozen=True)
class TopKDocument:
    """One memory, where its hits stand, and how far the tail is from where `generate` counts it."""

    memory: Memory
    positions: Positions
    top_k: int

    @property
    def lead(self) -> int:
        """Tokens of the prompt's head."""
        return self.memory.prefix_tokens

    @property
    def length(self) -> int:
        """Tokens of the document."""
        return self.memory.text_tokens

    @property
    def gap(self) -> int:
        """The model counts the tail right behind the head; all before it are moved back by this much."""
        return self.positions.end(min(self.top_k, self.length))


@dataclass(frozen=True)
class _LayerKeys:
    """One layer's keys before rotation and values (G, S, d), and keys as they are searched."""

    keys: Tensor
    values: Tensor
    searched: Tensor


class TopK:
    """What the attentions of some layers add while the model generates from some documents."""

    def __init__(
        self,
        decoder: CausalAdapter,
        layout: Layout,
        documents: Sequence[TopKDocument],
        layers: Sequence[int],
        heads: tuple[int, ...] | None,
    ) -> None:
        self._decoder, self._layout, self._documents = decoder, layout, documents
        self._layers, self._heads = set(layers), heads
        self._kept: dict[tuple[int, int], _LayerKeys] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the model's attentions see the documents."""
        _active.append(self)
        try:
            with attention_function(self._decoder.model.config, NAME):
                yield
        finally:
            _active.pop()

    def attend(self, layer: int, query: Tensor, context: Tensor, log_sum: Tensor) -> Tensor:
        """Adds the documents to local attention: contexts (B, H, T, d), log sums (B, H, T)."""
        view = self._decoder.attentions[layer]
        if layer not in self._layers:
            return context
        rows = query.shape[0] // len(self._documents)
        parts = []
        for number, document in enumerate(self._documents):
            mine = slice(number * rows, (number + 1) * rows)
            far, far_log_sum = self._document(view, document, query[mine])
            if self._heads is not None:
                local = torch.ones(view.heads, dtype=torch.bool, device=query.device)
                local[list(self._heads)] = False
                far_log_sum = far_log_sum.masked_fill(local[None, :, None], float("-inf"))
            parts.append(merge(context[mine].float(), log_sum[mine], far, far_log_sum))
        return torch.cat(parts).to(query.dtype)

    def _document(self, view: SelfAttention, document: TopKDocument, query: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of queries (R, H, T, d) to the document's best tokens: context, and log sums (R, H, T)."""
        kept = self._keep(view, document)
        rows, heads, length, width = query.shape
        flat = query.float().transpose(0, 1).reshape(heads, rows * length, width)
        at_once = max(1, _SCORES // (heads * max(document.length, document.top_k * width)))
        made = [self._hits(view, document, kept, part) for part in flat.split(at_once, dim=1)]
        context, log_sum = (torch.cat(parts, dim=1) for parts in zip(*made, strict=True))
        return (
            context.reshape(heads, rows, length, width).transpose(0, 1),
            log_sum.reshape(heads, rows, length).transpose(0, 1),
        )

    def _hits(
        self, view: SelfAttention, document: TopKDocument, kept: _LayerKeys, query: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Context (H, N, d) and log sums (H, N) of queries (H, N, d)."""
        heads, number, _ = query.shape
        each = heads // kept.searched.shape[0]
        scores = query.reshape(kept.searched.shape[0], each * number, -1) @ kept.searched.float().transpose(1, 2)
        found = scores.reshape(heads, number, -1).topk(min(document.top_k, document.length), dim=-1).indices
        found = found.sort(dim=-1).values  # (H, N, K), in the order of the text
        group = torch.arange(heads, device=query.device)[:, None, None] // each
        keys = kept.keys[group, found].float()
        if isinstance(document.positions, Consecutive):
            places = document.positions.place(found[0, 0])
        else:
            places = document.positions.place(found.flatten().cpu())
            keys = keys.flatten(0, 2)
        keys = view.rotate(keys, (places + document.lead - document.gap).to(query.device))
        keys = keys.reshape(*found.shape, -1)
        scores = cap((query[:, :, None] * keys).sum(-1) * view.scaling, self._decoder.softcap())
        values = kept.values[group, found].float()
        return (scores.softmax(-1)[..., None] * values).sum(2), scores.logsumexp(-1)

    def _keep(self, view: SelfAttention, document: TopKDocument) -> _LayerKeys:
        name = (view.layer, document.memory.key)
        if name not in self._kept:
            rows = document.memory.store.states[document.lead :].to(self._decoder.device)
            keys, values = self._layout.keys_and_values(rows, view.layer)
            everything = torch.arange(document.length)
            if isinstance(document.positions, Consecutive):  # its place is not known yet: each right before the tail
                places = torch.full((document.length,), document.lead - 1)
            else:
                places = document.positions.place(everything) + document.lead - document.gap
            searched = view.rotate(keys, places.to(keys.device)).to(rows.dtype)
            self._kept[name] = _LayerKeys(keys, values, searched)
        return self._kept[name]


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention over the local tokens (B, G, L, d), and what the document adds."""
    each = query.shape[1] // key.shape[1]
    keys, values = (part.repeat_interleave(each, dim=1) for part in (key, value))
    scores = (query @ keys.transpose(2, 3)).float() * (scaling or query.shape[-1] ** -0.5)
    scores = cap(scores, softcap)
    if attention_mask is not None:
        scores = scores + attention_mask[..., : keys.shape[2]].float()
    log_sum = scores.logsumexp(-1)
    context = scores.softmax(-1).to(values.dtype) @ values
    context = _active[-1].attend(module.layer_idx, query, context, log_sum)
    return context.transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
