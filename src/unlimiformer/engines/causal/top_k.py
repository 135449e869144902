"""The paper's method in a decoder-only model: at each step, each head adds its own best tokens of the document.

They join the prefix and suffix of the prompt under one softmax.
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
from ...functional import apply_softcap, merge
from ...memory import Memory
from .positions import Consecutive, Positions
from .row_layout import RowLayout

NAME = "unlimiformer-top-k"
_MAX_SCORES = 1 << 25  # numbers in one array of scores
_active: list[TopKAttention] = []


@dataclass(frozen=True)
class TopKDocument:
    """One memory, and which positions its retrieved tokens get."""

    memory: Memory
    positions: Positions
    top_k: int

    @property
    def prefix_length(self) -> int:
        """Number of tokens of the prompt's prefix."""
        return self.memory.prefix_tokens

    @property
    def length(self) -> int:
        """Number of tokens of the document."""
        return self.memory.text_tokens

    @property
    def gap(self) -> int:
        """How far everything before the suffix is moved back: the model counts the suffix right behind the prefix."""
        return self.positions.end(min(self.top_k, self.length))


@dataclass(frozen=True)
class _LayerKeys:
    """One layer's unrotated keys and values (G, S, d), and the rotated keys that are searched."""

    keys: Tensor
    values: Tensor
    search_keys: Tensor


class TopKAttention:
    """Lets some layers and heads attend to documents while the model generates."""

    def __init__(
        self,
        decoder: CausalAdapter,
        layout: RowLayout,
        documents: Sequence[TopKDocument],
        layers: Sequence[int],
        heads: tuple[int, ...] | None,
    ) -> None:
        self._decoder, self._layout, self._documents = decoder, layout, documents
        self._layers, self._heads = set(layers), heads
        self._layer_keys: dict[tuple[int, int], _LayerKeys] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside the block, the model's attentions see the documents."""
        _active.append(self)
        try:
            with attention_function(self._decoder.model.config, NAME):
                yield
        finally:
            _active.pop()

    def attend(self, layer: int, query: Tensor, context: Tensor, log_sum: Tensor) -> Tensor:
        """Merge the documents into local attention: contexts (B, H, T, d), log-sum-exps (B, H, T)."""
        view = self._decoder.attentions[layer]
        if layer not in self._layers:
            return context
        rows_per_document = query.shape[0] // len(self._documents)
        parts = []
        for number, document in enumerate(self._documents):
            rows = slice(number * rows_per_document, (number + 1) * rows_per_document)
            far, far_log_sum = self._attend_document(view, document, query[rows])
            if self._heads is not None:
                local_only = torch.ones(view.heads, dtype=torch.bool, device=query.device)
                local_only[list(self._heads)] = False
                far_log_sum = far_log_sum.masked_fill(local_only[None, :, None], float("-inf"))
            parts.append(merge(context[rows].float(), log_sum[rows], far, far_log_sum))
        return torch.cat(parts).to(query.dtype)

    def _attend_document(self, view: SelfAttention, document: TopKDocument, query: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of queries (R, H, T, d) to the document's best tokens: context, and log-sum-exp (R, H, T)."""
        layer_keys = self._load_keys(view, document)
        rows, heads, length, width = query.shape
        flat = query.float().transpose(0, 1).reshape(heads, rows * length, width)
        at_once = max(1, _MAX_SCORES // (heads * max(document.length, document.top_k * width)))
        outputs = [self._attend_hits(view, document, layer_keys, part) for part in flat.split(at_once, dim=1)]
        context, log_sum = (torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True))
        return (
            context.reshape(heads, rows, length, width).transpose(0, 1),
            log_sum.reshape(heads, rows, length).transpose(0, 1),
        )

    def _attend_hits(
        self, view: SelfAttention, document: TopKDocument, layer_keys: _LayerKeys, query: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Context (H, N, d) and log-sum-exp (H, N) of queries (H, N, d)."""
        heads, count, _ = query.shape
        groups = layer_keys.search_keys.shape[0]
        heads_per_group = heads // groups
        scores = query.reshape(groups, heads_per_group * count, -1) @ layer_keys.search_keys.float().transpose(1, 2)
        hits = scores.reshape(heads, count, -1).topk(min(document.top_k, document.length), dim=-1).indices
        hits = hits.sort(dim=-1).values  # (H, N, K), in the order of the text
        group = torch.arange(heads, device=query.device)[:, None, None] // heads_per_group
        keys = layer_keys.keys[group, hits].float()
        if isinstance(document.positions, Consecutive):
            positions = document.positions.place(hits[0, 0])
        else:
            positions = document.positions.place(hits.flatten().cpu())
            keys = keys.flatten(0, 2)
        keys = view.rotate(keys, (positions + document.prefix_length - document.gap).to(query.device))
        keys = keys.reshape(*hits.shape, -1)
        scores = apply_softcap((query[:, :, None] * keys).sum(-1) * view.scaling, self._decoder.softcap())
        values = layer_keys.values[group, hits].float()
        return (scores.softmax(-1)[..., None] * values).sum(2), scores.logsumexp(-1)

    def _load_keys(self, view: SelfAttention, document: TopKDocument) -> _LayerKeys:
        cache_key = (view.layer, document.memory.key)
        if cache_key not in self._layer_keys:
            rows = document.memory.store.states[document.prefix_length :].to(self._decoder.device)
            keys, values = self._layout.keys_and_values(rows, view.layer)
            if isinstance(document.positions, Consecutive):  # positions are unknown yet: right before the suffix
                positions = torch.full((document.length,), document.prefix_length - 1)
            else:
                everything = torch.arange(document.length)
                positions = document.positions.place(everything) + document.prefix_length - document.gap
            search_keys = view.rotate(keys, positions.to(keys.device)).to(rows.dtype)
            self._layer_keys[cache_key] = _LayerKeys(keys, values, search_keys)
        return self._layer_keys[cache_key]


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
    """Attention over the local tokens (B, G, L, d), merged with that over the documents."""
    heads_per_group = query.shape[1] // key.shape[1]
    keys, values = (part.repeat_interleave(heads_per_group, dim=1) for part in (key, value))
    scores = (query @ keys.transpose(2, 3)).float() * (scaling or query.shape[-1] ** -0.5)
    scores = apply_softcap(scores, softcap)
    if attention_mask is not None:
        scores = scores + attention_mask[..., : keys.shape[2]].float()
    log_sum = scores.logsumexp(-1)
    context = scores.softmax(-1).to(values.dtype) @ values
    context = _active[-1].attend(module.layer_idx, query, context, log_sum)
    return context.transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
