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


def test_plain_answers_about_several_texts_are_those_about_each(tokenizer, book):
    u = Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32)
    texts, prompts = [book[:120], book[:60], book[100:400]], ["Who is w1?", "w2 w3", "Describe w4"]
    settings = {"max_new_tokens": 6, "do_sample": False}
    together = u.engine.truncated_generate(texts, prompts, settings)
    alone = [
        u.engine.truncated_generate([text], [prompt], settings)[0] for text, prompt in zip(texts, prompts, strict=True)
    ]
    assert together == alone


def test_the_beginning_of_a_plain_answer_is_given(tokenizer, book):
    u = Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32)
    settings = {"max_new_tokens": 6, "do_sample": False}
    (answer,) = u.engine.truncated_generate([book[:120]], ["w2 w3"], settings, answer_start=" w9 w8")
    template = u.engine.template
    document = torch.tensor(tokenizer(book[:120], add_special_tokens=False)["input_ids"])
    beginning = torch.tensor(tokenizer("w9 w8", add_special_tokens=False)["input_ids"])
    prompt = torch.cat((template.prefix(None), document, template.suffix("w2 w3").ids, beginning))[None]
    sequences = u.model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    assert answer == tokenizer.decode(sequences[0, prompt.shape[1] :], skip_special_tokens=True)
