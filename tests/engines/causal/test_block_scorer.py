"""Scores of blocks: how far they stand out."""

from __future__ import annotations

import pytest
import torch

from unlimiformer.engines.causal.block_scorer import zscore


@pytest.mark.parametrize("blocks", [2, 3, 5, 8, 40])
def test_zscore_of_a_block_that_stands_out(blocks):
    scores = torch.randn(4, blocks, generator=torch.Generator().manual_seed(0))
    scores[:, 1] += 50
    standardized = zscore(scores)
    assert int(standardized.argmax()) == 1 and (standardized >= 0).all()
