"""Fingerprints of models: the same wherever a checkpoint is loaded, another one for other weights."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_causal_models import tiny_decoder

from unlimiformer import Memory, Unlimiformer
from unlimiformer.memory.fingerprint import is_same_checkpoint, model_digest


def _digest(model):
    return model_digest(model.config, model)


@pytest.fixture
def narrow():
    """A model whose checkpoint is in bfloat16."""
    return tiny_decoder("qwen2").to(torch.bfloat16)


def _as_float32(model):
    wide = copy.deepcopy(model).float()
    wide.config.dtype = torch.float32
    return wide


def test_a_bfloat16_checkpoint_is_the_same_as_float32(narrow):
    narrow.config.dtype = torch.bfloat16
    wide = _as_float32(narrow)
    assert _digest(wide) != _digest(narrow)
    assert is_same_checkpoint(_digest(wide), narrow.config, narrow)
    assert is_same_checkpoint(_digest(narrow), wide.config, wide)
    with torch.no_grad():
        next(wide.parameters()).view(-1)[0] += 1e-5
    assert not is_same_checkpoint(_digest(wide), narrow.config, narrow)
    assert not is_same_checkpoint(_digest(narrow), wide.config, wide)


@pytest.mark.parametrize("first_is_narrow", [True, False])
def test_a_memory_of_one_processor_is_read_on_another(narrow, tokenizer, book, tmp_path, first_is_narrow):
    settings = {"window": 64, "top_k": 48}
    narrow.config.dtype = torch.bfloat16
    models = (narrow, _as_float32(narrow)) if first_is_narrow else (_as_float32(narrow), narrow)
    with Unlimiformer(models[0], tokenizer, **settings) as u:
        u.index(book).save(tmp_path / "book.memory")
    with Unlimiformer(models[1], tokenizer, **settings) as u:
        assert u.generate(Memory.load(tmp_path / "book.memory"), prompt="w5?", max_new_tokens=3).token_ids.numel() > 0
