"""Which heads of the cross-attention search passages."""

from __future__ import annotations

import pytest
import torch
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq import retrieval_heads
from unlimiformer.provenance import Attention, Provenance

GREEDY = {"max_new_tokens": 4, "do_sample": False}


def one_head_finds_equal_tokens(layer=1, head=2):
    """A BART whose encoder and decoder keep the words, so that one head of one layer can look for equal ones."""
    model = make("bart").eval()
    with torch.no_grad():
        for blocks in (model.model.encoder.layers, model.model.decoder.layers):
            for block in blocks:
                for linear in (block.self_attn.out_proj, block.fc2):
                    linear.weight.zero_()
                    linear.bias.zero_()
        for block in model.model.decoder.layers:
            block.encoder_attn.out_proj.weight.zero_()
            block.encoder_attn.out_proj.bias.zero_()
        for part in (model.model.encoder, model.model.decoder):
            part.embed_positions.weight.zero_()
        attention = model.model.decoder.layers[layer].encoder_attn
        width = attention.head_dim
        rows = slice(head * width, (head + 1) * width)
        mixed = torch.randn(width, attention.embed_dim, generator=torch.Generator().manual_seed(0))
        attention.q_proj.weight[rows] = attention.k_proj.weight[rows] = 3 * mixed
    return model


@pytest.fixture
def engine(tokenizer, monkeypatch, tmp_path):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path))
    with Unlimiformer(one_head_finds_equal_tokens(), tokenizer, window=WINDOW, selection="reread") as u:
        yield u.engine


def test_a_head_that_finds_equal_tokens_is_the_first(engine, monkeypatch):
    ranking = retrieval_heads.retrieval_heads(engine)
    layers, heads = len(engine.cross_attentions), engine.cross_attentions[0].heads
    assert len(set(ranking)) == len(ranking) == layers * heads
    assert ranking[0] == (1, 2)
    monkeypatch.setattr(retrieval_heads, "rank_heads", lambda *_: pytest.fail("the ranking was cached"))
    assert retrieval_heads.retrieval_heads(engine) == ranking


def test_the_attention_of_these_heads_alone_searches(tokenizer, engine, monkeypatch):
    """Passages are ranked by what they attend to; what the other heads attend to does not matter."""
    monkeypatch.setattr(type(engine), "_searching_heads", lambda self: [(1, 2)])
    words = ["w1"] * 300
    words[200:206] = ["w40", "w41", "w42", "w43", "w44", "w45"]
    memory = engine.index(" ".join(words))
    seen = []
    read = engine._reader.read
    monkeypatch.setattr(
        engine._reader,
        "read",
        lambda memory, query, attention: seen.append(attention) or read(memory, query, attention),
    )
    engine.generate([memory], ["w41 w44"], False, dict(GREEDY))
    best = seen[0].topk(2).indices.tolist()
    assert sorted(int(token) for token in memory.token_ids[best]) == sorted(
        tokenizer("w41 w44", add_special_tokens=False)["input_ids"]
    )


def test_attention_of_some_heads(tokenizer):
    layers = {n: Attention(torch.arange(12).reshape(1, 3, 4), torch.full((1, 3, 4), 0.25).cumsum(0)) for n in range(2)}
    kept = retrieval_heads.of_heads(layers, [(1, 2), (1, 0)])
    assert list(kept) == [1] and kept[1].index[0, :, 0].tolist() == [8, 0]
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW) as u:
        memory = u.index("w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16")
    weights = Provenance.from_layers(memory, kept).weights
    assert set(weights.nonzero()[:, 0].tolist()) == {0, 1, 2, 3, 8, 9, 10, 11}
