"""The ranking of retrieval heads, and its cache."""

from __future__ import annotations

import pytest
from tiny_causal_models import one_head_matches

from unlimiformer import Unlimiformer
from unlimiformer.engines.causal import retrieval_heads


def test_a_head_that_matches_equal_tokens_is_ranked_first(monkeypatch, tmp_path):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path))
    decoder = Unlimiformer(one_head_matches(), block=8, top_k=32).engine.decoder
    ranking = retrieval_heads.retrieval_heads(decoder, 8)
    assert len(ranking) == 12 and len(set(ranking)) == 12
    assert ranking[0] == (0, 2)
    monkeypatch.setattr(retrieval_heads, "rank_heads", lambda *_: pytest.fail("the ranking was cached"))
    assert retrieval_heads.retrieval_heads(decoder, 8) == ranking
