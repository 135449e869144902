"""All of transformers' `generate` behind a document, for every selection."""

from __future__ import annotations

import pytest
import torch
import transformers
from causal_helpers import CACHED_SELECTIONS, SELECTIONS, generate, random_prompt
from tiny_causal_models import tiny_decoder
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from unlimiformer import Unlimiformer, UnlimiformerError

MODES = {
    "beams": {"num_beams": 3, "max_new_tokens": 5},
    "several": {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 4},
    "sampled": {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 5, "top_k": 20},
    "penalty": {"repetition_penalty": 1.3, "max_new_tokens": 5},
}


@pytest.mark.parametrize(
    ("selection", "mode"),
    [(s, m) for s in SELECTIONS for m in MODES if (s, m) != ("top-k", "penalty")],  # that pair has its own test
)
def test_every_mode_equals_the_plain_model(selection, mode):
    model, (prefix, document, suffix) = tiny_decoder("llama"), random_prompt()
    ids = torch.cat((prefix, document, suffix))[None]
    settings = {"do_sample": False, **MODES[mode]}
    torch.manual_seed(7)
    expected = model.generate(ids, **settings)[:, ids.shape[1] :]
    with Unlimiformer(model, selection=selection, block=8, top_k=64, window=64) as u:
        torch.manual_seed(7)
        got = generate(u, prefix, document, suffix, **settings)
    assert got.tolist() == expected.tolist()


def test_repetition_penalty_of_top_k_ignores_the_document():
    """With `top-k` the document is no part of the prompt, so the penalty holds for the other tokens only."""
    model, (prefix, document, suffix) = tiny_decoder("llama"), random_prompt()
    ids = torch.cat((prefix, document, suffix))[None]
    settings = {"max_new_tokens": 12, "do_sample": False}
    penalty = RepetitionPenaltyLogitsProcessor(1.8)
    document_end = prefix.shape[0] + document.shape[0]

    def penalize_without_document(seen_ids, scores):
        return penalty(torch.cat((seen_ids[:, : prefix.shape[0]], seen_ids[:, document_end:]), dim=1), scores)

    expected = model.generate(ids, logits_processor=[penalize_without_document], **settings)[:, ids.shape[1] :]
    with_document = model.generate(ids, repetition_penalty=1.8, **settings)[:, ids.shape[1] :]
    without = model.generate(ids, **settings)[:, ids.shape[1] :]
    assert expected.tolist() != with_document.tolist(), "the document's tokens must matter, or this shows nothing"
    assert expected.tolist() != without.tolist(), "the penalty must matter, or this shows nothing"
    with Unlimiformer(model, selection="top-k", block=8, top_k=64, window=64) as u:
        got = generate(u, prefix, document, suffix, repetition_penalty=1.8, **settings)
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "qwen3", "smollm3"])
def test_a_batch_equals_its_rows(name, selection):
    """Documents, prefixes and suffixes of different lengths, in one window and in many."""
    model = tiny_decoder(name)
    prompts = [random_prompt(seed, length) for seed, length in ((1, 30), (2, 150), (3, 260))]
    prefixes, documents, suffixes = (list(parts) for parts in zip(*prompts, strict=True))
    prefixes[1], suffixes[2] = prefixes[1][:3], suffixes[2][:4]
    settings = {"max_new_tokens": 5, "do_sample": False}
    with Unlimiformer(model, selection=selection, block=8, top_k=32, window=64, dtype="float32") as u:
        batch = generate(u, prefixes, documents, suffixes, **settings)
        rows = [generate(u, *parts, **settings)[0] for parts in zip(prefixes, documents, suffixes, strict=True)]
    assert batch.tolist() == [row.tolist() for row in rows]


@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_document_changes_the_answer(selection):
    model, (prefix, document, suffix) = tiny_decoder("llama"), random_prompt(length=300)
    settings = {"max_new_tokens": 8, "do_sample": False}
    with Unlimiformer(model, selection=selection, block=8, top_k=32, window=64) as u:
        answer = generate(u, prefix, document, suffix, **settings)
        answer_to_reversed = generate(u, prefix, document.flip(0), suffix, **settings)
    assert answer.tolist() != answer_to_reversed.tolist()


def test_reread_gives_the_same_without_cache():
    model, (prefix, document, suffix) = tiny_decoder("llama"), random_prompt(length=300)
    settings = {"max_new_tokens": 6, "do_sample": False}
    with Unlimiformer(model, selection="reread", block=8, top_k=32, window=64) as u:
        cached, uncached = (generate(u, prefix, document, suffix, use_cache=use, **settings) for use in (True, False))
    assert cached.tolist() == uncached.tolist()


@pytest.mark.parametrize("selection", CACHED_SELECTIONS)
def test_other_selections_need_the_cache(selection):
    model, (prefix, document, suffix) = tiny_decoder("llama"), random_prompt(length=300)
    settings = {"max_new_tokens": 6, "do_sample": False}
    with Unlimiformer(model, selection=selection, block=8, top_k=32, window=64) as u:
        assert generate(u, prefix, document, suffix, use_cache=True, **settings).shape == (1, 6)
        with pytest.raises(UnlimiformerError, match="use_cache"):
            generate(u, prefix, document, suffix, use_cache=False, **settings)


def test_beams_of_the_generation_config():
    model, (prefix, document, suffix) = tiny_decoder("llama"), random_prompt()
    model.generation_config.num_beams = 3
    ids = torch.cat((prefix, document, suffix))[None]
    config = transformers.GenerationConfig(max_new_tokens=4)
    expected = model.generate(ids, generation_config=config)[:, ids.shape[1] :]
    with Unlimiformer(model, selection="blocks", block=8, top_k=64, window=64) as u:
        got = generate(u, prefix, document, suffix, generation_config=config)
    assert got.tolist() == expected.tolist()
