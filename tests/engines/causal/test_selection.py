"""Which blocks of a document are selected for a question."""

from __future__ import annotations

import pytest
import torch
from causal_helpers import generate, random_prompt
from tiny_causal_models import tiny_decoder

from unlimiformer import Unlimiformer
from unlimiformer.engines.causal.prompts import PromptSuffix
from unlimiformer.engines.causal.selection import SelectedTokens, TopBlocks
from unlimiformer.memory.encode import TokenizedInput


def test_tokens_of_spans_carry_the_weight_of_their_span():
    selected = SelectedTokens.from_spans({(4, 8): 3.0, (10, 12): 1.0}, 20)
    assert selected.tokens.tolist() == [4, 5, 6, 7, 10, 11]
    assert selected.weights.tolist() == pytest.approx([3 / 16] * 4 + [1 / 8] * 2)


def test_overlapping_spans_add_up():
    selected = SelectedTokens.from_spans({(0, 2): 1.0, (1, 3): 1.0}, 3)
    assert selected.tokens.tolist() == [0, 1, 2]
    assert selected.weights.tolist() == pytest.approx([0.25, 0.5, 0.25])


@pytest.mark.parametrize("layers", [(0,), (1, 2)])
@torch.no_grad()
def test_layers_without_scoring_heads_use_the_selection_of_all_heads(layers):
    model, (prefix, document, suffix) = tiny_decoder("llama"), random_prompt(length=152)
    with Unlimiformer(model, selection="blocks-by-layer", layers=layers, block=8, top_k=32, window=64) as u:
        assert generate(u, prefix, document, suffix, max_new_tokens=3, do_sample=False).shape == (1, 3)
        engine = u.engine
        (memory,) = engine.indexer.index_inputs([TokenizedInput(document, prefix, {})])
        question = PromptSuffix(suffix, suffix, suffix[:0])
        by_layer, shared = (
            TopBlocks(engine.block_scorer, engine.layout, 8, 32, by_layer=flag).select(memory, question, range(3))
            for flag in (True, False)
        )
    for layer in set(range(3)) - set(layers):
        assert by_layer[layer].tokens.tolist() == shared[layer].tokens.tolist()
