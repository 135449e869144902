"""The ranking of retrieval heads, and its cache."""

from __future__ import annotations

import pytest
from tiny_causal_models import one_head_matches, tiny_decoder

from unlimiformer import Unlimiformer
from unlimiformer.engines.causal import engine, retrieval_heads
from unlimiformer.errors import MemoryMismatchError


def test_a_head_that_matches_equal_tokens_is_ranked_first(monkeypatch, tmp_path):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path))
    decoder = Unlimiformer(one_head_matches(), block=8, top_k=32).engine.decoder
    ranking = retrieval_heads.retrieval_heads(decoder, 8)
    assert len(ranking) == 12 and len(set(ranking)) == 12
    assert ranking[0] == (0, 2)
    monkeypatch.setattr(retrieval_heads, "rank_heads", lambda *_: pytest.fail("the ranking was cached"))
    assert retrieval_heads.retrieval_heads(decoder, 8) == ranking


RANKING = [(2, 1), (0, 3), (1, 0), (2, 2), (0, 0), (1, 3), (0, 1), (1, 2), (0, 2)]


def test_the_best_heads_in_the_first_layers_score(monkeypatch):
    monkeypatch.setattr(engine, "retrieval_heads", lambda *_: RANKING)
    wrapped = Unlimiformer(tiny_decoder("llama"), block=8, top_k=32)
    assert wrapped.engine.rank_heads() == [(0, 0), (0, 1)]
    assert sorted(wrapped.engine.layout.columns) == [0], "the other layers are not computed for a memory"
    others = Unlimiformer(tiny_decoder("llama"), block=8, top_k=32, selection="blocks")
    assert set(others.engine.rank_heads()) == set(RANKING[:8])


def test_a_memory_with_the_keys_of_more_heads_is_read(monkeypatch, tokenizer):
    """An earlier version stored the keys of all of the best heads."""
    monkeypatch.setattr(engine, "retrieval_heads", lambda *_: RANKING)
    text, memories = " ".join(f"w{word % 90}" for word in range(200)), []
    for number in (8, 2):
        monkeypatch.setattr(engine, "_EARLIEST_HEADS", number)
        with Unlimiformer(tiny_decoder("llama"), tokenizer, block=8, top_k=32, window=48) as u:
            memories.append(u.index(text))
    with Unlimiformer(tiny_decoder("llama"), tokenizer, block=8, top_k=32, window=48) as u:
        large, small = memories
        assert large.spec.row.layout != small.spec.row.layout
        outputs = [u.generate(memory, prompt="w20 w21", max_new_tokens=5, do_sample=False) for memory in memories]
        assert outputs[0].token_ids.tolist() == outputs[1].token_ids.tolist()
        scores = [
            u.engine.block_scorer.score_blocks(memory, u.engine.layout_of(memory), memory.text_ids[20:30])
            for memory in memories
        ]
        assert all((scores[0][head] - scores[1][head]).abs().max() == 0 for head in u.engine.rank_heads())


def test_a_memory_without_a_head_that_scores_is_refused(monkeypatch, tokenizer):
    monkeypatch.setattr(engine, "retrieval_heads", lambda *_: RANKING[:3])
    with Unlimiformer(tiny_decoder("llama"), tokenizer, block=8, top_k=32, window=48) as u:
        memory = u.index(" ".join(f"w{word % 90}" for word in range(200)))
    monkeypatch.setattr(engine, "retrieval_heads", lambda *_: RANKING)
    u = Unlimiformer(tiny_decoder("llama"), tokenizer, block=8, top_k=32, window=48)
    with u, pytest.raises(MemoryMismatchError, match="other layers or heads"):
        u.generate(memory, prompt="w20", max_new_tokens=5)
