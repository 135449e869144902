"""Scores of blocks: how far they stand out, and how likely they make the question."""

from __future__ import annotations

import pytest
import torch
from tiny_causal_models import VOCABULARY, tiny_decoder

from unlimiformer import Unlimiformer
from unlimiformer.engines.causal.block_scorer import BlockScorer, zscore


@pytest.mark.parametrize("blocks", [2, 3, 5, 8, 40])
def test_zscore_of_a_block_that_stands_out(blocks):
    scores = torch.randn(4, blocks, generator=torch.Generator().manual_seed(0))
    scores[:, 1] += 50
    standardized = zscore(scores)
    assert int(standardized.argmax()) == 1 and (standardized >= 0).all()


def test_rerank_gives_the_likelihood_of_the_question():
    """Compared with one pass over each block by itself."""
    model = tiny_decoder("llama")
    prefix, question, before = torch.arange(3, 8), torch.arange(20, 26), torch.arange(40, 43)
    blocks = [torch.randint(3, VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)) for n in (8, 8, 5, 8)]
    with Unlimiformer(model, block=8, top_k=32) as u, torch.no_grad():
        likelihoods = BlockScorer(u.engine.decoder, [(0, 0)], 8).rerank(prefix, blocks, before, question)
        for block, likelihood in zip(blocks, likelihoods, strict=True):
            ids = torch.cat((prefix, block, before, question))
            log_probabilities = model(ids[None]).logits[0].log_softmax(-1)
            positions = range(ids.shape[0] - 6, ids.shape[0])
            expected = sum(float(log_probabilities[i - 1, ids[i]]) for i in positions)
            assert float(likelihood) == pytest.approx(expected, abs=1e-3)
