"""The contract of every decoder-only family: retrieving everything from one window equals the plain model."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import transformers
from causal_helpers import CACHED_SELECTIONS, TOLERANCE, ScoreRecorder, generate, random_prompt
from tiny_causal_models import DECODERS, VARIANTS, VOCABULARY, tiny_decoder

from unlimiformer import Unlimiformer, UnsupportedModelError
from unlimiformer.adapters.registry import CAUSAL_ADAPTERS
from unlimiformer.engines.causal.positions import POSITIONS

MODELS = [*DECODERS, *VARIANTS]
WITHOUT_TOP_K = ("falcon", "falcon, grouped", "gemma2", "gemma3_text", "mistral, sliding")
METHODS = [("reread", None), *product(CACHED_SELECTIONS, POSITIONS)]


def test_every_supported_family_is_tested():
    assert set(DECODERS) == set(CAUSAL_ADAPTERS)


@pytest.mark.parametrize(
    ("name", "selection", "positions"),
    [
        (name, selection, positions)
        for name, (selection, positions) in product(MODELS, METHODS)
        if selection != "top-k" or name not in WITHOUT_TOP_K
    ],
)
def test_one_window_equals_the_plain_model(name, selection, positions):
    model = tiny_decoder(name)
    prefix, document, suffix = random_prompt()
    plain, wrapped = ScoreRecorder(), ScoreRecorder()
    ids = torch.cat((prefix, document, suffix))[None]
    settings = {"max_new_tokens": 5, "do_sample": False}
    expected = model.generate(ids, logits_processor=[plain], **settings)[0, ids.shape[1] :]
    with Unlimiformer(model, selection=selection, positions=positions, block=8, top_k=64, window=64) as u:
        got = generate(u, prefix, document, suffix, logits_processor=[wrapped], **settings)[0]
    assert got.tolist() == expected.tolist()
    assert len(wrapped.steps) == 5
    for scores, expected_scores in zip(wrapped.steps, plain.steps, strict=True):
        assert (scores - expected_scores).abs().max() <= TOLERANCE * expected_scores.abs().max()


@pytest.mark.parametrize("name", WITHOUT_TOP_K)
def test_top_k_is_refused_where_heads_share_their_tokens(name):
    with pytest.raises(UnsupportedModelError, match="tokens of their own"):
        Unlimiformer(tiny_decoder(name), selection="top-k")


def test_other_models_are_refused_by_name():
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=VOCABULARY))
    with pytest.raises(UnsupportedModelError, match="gpt2"):
        Unlimiformer(gpt2)
    common = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    with pytest.raises(UnsupportedModelError, match="ALiBi"):
        Unlimiformer(transformers.FalconForCausalLM(transformers.FalconConfig(alibi=True, **common)))
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    config = transformers.LlamaConfig(**common, intermediate_size=32, rope_parameters=rope)
    with pytest.raises(UnsupportedModelError, match="dynamic"):
        Unlimiformer(transformers.LlamaForCausalLM(config))
