"""The engine of decoder-only models: long prompts in the model's own `generate`, and settings that do not fit."""

from __future__ import annotations

import pytest
import torch
from tiny_causal_models import VOCABULARY, tiny_decoder

from unlimiformer import Unlimiformer, UnlimiformerError


def test_long_prompts_in_the_models_own_generate():
    """Prompts beyond the limit are indexed; others take the model's own path; the method is restored."""
    model = tiny_decoder("llama")
    torch.manual_seed(3)
    short, long = torch.randint(3, VOCABULARY, (1, 50)), torch.randint(3, VOCABULARY, (2, 700))
    settings = {"max_new_tokens": 4, "do_sample": False}
    plain = model.generate(short, **settings)
    with Unlimiformer(model, block=8, top_k=32, window=64):
        assert model.generate(short, **settings).tolist() == plain.tolist()
        sequences = model.generate(input_ids=long, attention_mask=torch.ones_like(long), **settings)
        assert sequences.shape == (2, 704) and sequences[:, :700].tolist() == long.tolist()
        beams = model.generate(long, num_beams=2, num_return_sequences=2, **settings)
        assert beams.shape == (4, 704)
        assert model.generate(long, max_length=710, do_sample=False).shape == (2, 710)
        with pytest.raises(UnlimiformerError, match="return_dict_in_generate"):
            model.generate(long, return_dict_in_generate=True, **settings)
    assert "generate" not in model.__dict__


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "int8"),
        ({"store": "ivf"}, "exact"),
        ({"store": "cells"}, "exact"),
        ({"window": 4096}, "4096"),
        ({"positions": "rescaled"}, "side by side"),
        ({"layers": (9,)}, "layers"),
        ({"heads": (7,)}, "heads"),
        ({"top_k": 8}, "block"),
        ({"top_k": 4096}, "4096"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    model = tiny_decoder("llama")
    with pytest.raises(UnlimiformerError, match=message):
        Unlimiformer(model, **settings)
    assert "generate" not in model.__dict__
