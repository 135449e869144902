"""Placeholders: which memory the rows of an encoder's output belong to."""

from __future__ import annotations

import pytest
import torch
from tiny_models import WINDOW, make, random_ids

from unlimiformer import Memory, Unlimiformer, UnlimiformerError, UnsupportedModelError
from unlimiformer.datastore import ExactStore
from unlimiformer.engines.seq2seq.placeholder import PlaceholderRegistry

LENGTH = 150


def _memory() -> Memory:
    return Memory(ExactStore(torch.zeros(3, 16)), torch.zeros(3, dtype=torch.long), None, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_memories_are_found_in_every_dtype_and_order(dtype):
    registry, memories = PlaceholderRegistry(), [_memory() for _ in range(3)]
    placeholder = registry.create(memories, 16, dtype, torch.device("cpu"))
    assert placeholder.shape == (3, 1, 16)
    assert registry.find(placeholder) == memories
    beams = placeholder.repeat_interleave(2, dim=0)[[5, 0, 2, 2]]
    assert registry.find(beams) == [memories[2], memories[0], memories[1], memories[1]]


def test_real_states_are_no_placeholder():
    registry = PlaceholderRegistry()
    placeholder = registry.create([_memory()], 16, torch.float32, torch.device("cpu"))
    assert registry.find(torch.randn(1, 1, 16)) is None
    assert registry.find(placeholder.expand(1, 2, 16)) is None
    assert registry.find(placeholder + 1) is None
    assert registry.find(None) is None


def test_narrow_states_are_refused():
    with pytest.raises(UnsupportedModelError, match="expected at least 8"):
        PlaceholderRegistry().create([_memory()], 7, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_old_encoder_outputs_are_refused(family):
    model = make(family)
    with Unlimiformer(model, window=WINDOW), torch.no_grad():
        first = model.get_encoder()(input_ids=random_ids(1, LENGTH))
        model.get_encoder()(input_ids=random_ids(1, LENGTH, seed=8))
        with pytest.raises(UnlimiformerError, match="memory behind these encoder outputs is gone"):
            model(encoder_outputs=first, decoder_input_ids=random_ids(1, 2))
