"""Key-value caches: pad rows, fill a cache with stored keys and values, take one row's part out of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ...adapters.causal import CausalAdapter
from ...memory.fingerprint import model_digest

_KEPT_TOKENS = 2048
KeysValues = tuple[Tensor, Tensor]
"""Keys and values (G, n, d) of one layer and row."""


def pad_left(rows: Sequence[Tensor], padding: int) -> tuple[Tensor, Tensor]:
    """Rows of token ids in one tensor, padded on the left, and their attention mask."""
    longest = max(row.shape[0] for row in rows)
    ids = torch.full((len(rows), longest), padding)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, longest - row.shape[0] :] = row
        mask[number, longest - row.shape[0] :] = 1
    return ids, mask


def join_cached(cached: Sequence[Tensor], suffixes: Sequence[Tensor], padding: int) -> tuple[Tensor, Tensor]:
    """Token ids and mask of what a cache holds, then the suffixes; each part is padded, as a cache has one length."""
    cached_ids, cached_mask = pad_left(cached, padding)
    suffix_ids, suffix_mask = pad_left(suffixes, padding)
    return torch.cat((cached_ids, suffix_ids), dim=1), torch.cat((cached_mask, suffix_mask), dim=1)


def fill_cache(config: Any, by_layer: list[list[KeysValues]], repeats: int) -> DynamicCache:
    """A cache with the keys and values of each layer and row; `generate` follows every row `repeats` times."""
    cache = DynamicCache(config=config)
    for layer, rows in enumerate(by_layer):
        longest = max(keys.shape[1] for keys, _ in rows)
        keys, values = (
            torch.stack([torch.nn.functional.pad(row[i], (0, 0, longest - row[i].shape[1], 0)) for row in rows])
            for i in (0, 1)
        )
        cache.update(keys, values, layer)
    cache.batch_repeat_interleave(repeats)
    return cache


def slice_prompt(cache: Any, row: int, columns: Tensor) -> DynamicCache | None:
    """Some columns of one row of a cache; None if a layer no longer holds them all."""
    prompt_cache = DynamicCache()
    for number, layer in enumerate(cache.layers):
        if layer.keys.shape[2] < max(int(columns[-1]) + 2, layer.get_seq_length()):  # a sliding window dropped some
            return None
        selected = columns.to(layer.keys.device)
        prompt_cache.update(layer.keys[row, :, selected][None], layer.values[row, :, selected][None], number)
    return prompt_cache


def read_prefix(decoder: CausalAdapter, prefix: Tensor, first_position: int = 0) -> list[KeysValues]:
    """Keys and values (G, n, d) of each layer for a prefix (n,)."""
    cache = DynamicCache()
    positions = torch.arange(prefix.shape[0], device=decoder.device)[None] + first_position
    decoder.backbone(prefix[None].to(decoder.device), position_ids=positions, past_key_values=cache, use_cache=True)
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]  # type: ignore[union-attr, index]


def read_behind(decoder: CausalAdapter, prefix: Sequence[KeysValues], tokens: Tensor) -> list[KeysValues]:
    """Keys and values (G, m + n, d) of each layer for m tokens that are read already, and n more (n,) behind them."""
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(prefix):
        cache.update(keys[None], values[None], layer)
    start = prefix[0][0].shape[1]
    positions = torch.arange(start, start + tokens.shape[0], device=decoder.device)[None]
    decoder.backbone(tokens[None].to(decoder.device), position_ids=positions, past_key_values=cache, use_cache=True)
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]  # type: ignore[union-attr, index]


class PrefixReader:
    """Keeps the keys and values of the last prefixes, so that the next questions do not read them again.

    These are examples of short answers, or a short document that is asked about again. At most `_KEPT_TOKENS` tokens
    are kept beside the last prefix.
    """

    def __init__(self, decoder: CausalAdapter) -> None:
        self._decoder = decoder
        self._digest = ""
        self._kept: dict[tuple[int, ...], list[KeysValues]] = {}  # the last one was used last

    def read(self, prefix: Tensor) -> list[KeysValues]:
        """Keys and values (G, n, d) of each layer for a prefix (n,), with the model's present weights."""
        digest, key = model_digest(self._decoder.model.config, self._decoder.backbone), tuple(prefix.tolist())
        kept = self._kept if digest == self._digest else {}
        read = kept[key] if key in kept else read_prefix(self._decoder, prefix)
        others = {other: states for other, states in kept.items() if other != key}
        while sum(map(len, others)) > _KEPT_TOKENS:
            del others[next(iter(others))]
        self._digest, self._kept = digest, {**others, key: read}
        return read
