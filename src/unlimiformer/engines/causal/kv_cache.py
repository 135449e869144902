"""Key-value caches: pad rows, fill a cache with stored keys and values, take one row's part out of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

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


def slice_prompt(cache: Any, row: int, padded_length: int, length: int) -> DynamicCache | None:
    """One row's cache of its prompt without the last token; None if a layer no longer holds all of the prompt."""
    prompt_cache = DynamicCache()
    for number, layer in enumerate(cache.layers):
        if layer.keys.shape[2] < max(padded_length, layer.get_seq_length()):  # a sliding window dropped the first
            return None
        columns = slice(padded_length - length, padded_length - 1)
        prompt_cache.update(layer.keys[row : row + 1, :, columns], layer.values[row : row + 1, :, columns], number)
    return prompt_cache
