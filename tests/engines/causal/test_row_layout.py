"""What a row of a memory holds, and that it equals the plain model's own cache."""

from __future__ import annotations

import torch
from causal_helpers import random_prompt
from tiny_causal_models import tiny_decoder
from transformers import DynamicCache

from unlimiformer import Unlimiformer
from unlimiformer.memory.encode import TokenizedInput
from unlimiformer.text.windows import plan_windows


def test_rows_hold_the_keys_and_values_of_the_plain_model():
    """Keys and values of a long document, window by window, compared with the plain model's own cache."""
    model, (prefix, document, _) = tiny_decoder("llama"), random_prompt(length=150)
    with Unlimiformer(model, selection="blocks", block=8, top_k=32, window=64, dtype="float32") as u:
        engine = u.engine
        (memory,) = engine.indexer.index_inputs([TokenizedInput(document, prefix, {})])
        for window in plan_windows(150, 64 - prefix.shape[0], 0.25, causal=True):
            cache = DynamicCache()
            ids = torch.cat((prefix, document[window.start : window.end]))[None]
            model.model(ids, past_key_values=cache)
            in_window = slice(prefix.shape[0] + window.keep_start - window.start, None)
            in_memory = slice(prefix.shape[0] + window.keep_start, prefix.shape[0] + window.keep_end)
            for layer, view in enumerate(engine.decoder.attentions):
                keys, values = engine.layout.keys_and_values(memory.store.rows_at(in_memory), layer)
                rotated = view.rotate(keys, torch.arange(ids.shape[1])[in_window])
                assert torch.allclose(rotated, cache.layers[layer].keys[0][:, in_window], atol=1e-5)
                assert torch.allclose(values, cache.layers[layer].values[0][:, in_window], atol=1e-5)


def test_the_smaller_content_is_stored():
    """Grouped heads store keys and values, many heads their layer's input; `reread` stores a few heads' keys."""
    for name, content, width in (("llama", "keys and values", 2 * 2 * 8), ("llama, all heads", "inputs", 32)):
        with Unlimiformer(tiny_decoder(name), selection="blocks", block=8, top_k=32) as u:
            assert {spec.content for spec in u.engine.layout.columns.values()} == {content}
            assert u.engine.layout.width == 3 * width
    with Unlimiformer(tiny_decoder("llama"), block=8, top_k=32, layers=(1,), heads=(0, 1)) as u:
        assert u.engine.layout.width == 8, "two heads of one group share a key of eight numbers"
