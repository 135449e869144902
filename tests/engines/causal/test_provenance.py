"""Provenance of a decoder-only model's answers, compared with the plain model's own attention."""

from __future__ import annotations

import pytest
import torch
from causal_helpers import chosen_context
from tiny_causal_models import tiny_decoder

from unlimiformer import Unlimiformer, UnlimiformerError
from unlimiformer.engines.causal.generation import Query, RereadGenerator


@pytest.mark.parametrize("mode", [{"num_beams": 1}, {"num_beams": 3}])
def test_attention_of_a_token_equals_that_of_the_plain_model(tokenizer, book, mode):
    """The plain model reads prompt and answer at once."""
    model, questions = tiny_decoder("llama"), ["w1 w2?", "w5?"]
    with Unlimiformer(model, tokenizer, window=64, top_k=12, block=4) as u:
        memories = [u.index(book), u.index(book[300:])]
        outs = u.generate(memories, prompt=questions, provenance=True, max_new_tokens=5, do_sample=False, **mode)
        assert model.config._attn_implementation != "eager", "restored after tracing"
        generator, template = RereadGenerator(u.engine), u.engine.template
        with torch.no_grad():
            prompts = [
                generator.build_prompts(Query(memory, template.suffix(question)))
                for memory, question in zip(memories, questions, strict=True)
            ]
    model.set_attn_implementation("eager")
    for out, contexts in zip(outs, prompts, strict=True):
        assert len(contexts) > 1
        number, answer = chosen_context(
            model, [prompt.ids for prompt in contexts], max_new_tokens=5, do_sample=False, **mode
        )
        prompt = contexts[number]
        assert answer.tolist() == out.token_ids.tolist()
        with torch.no_grad():
            attentions = model(torch.cat((prompt.ids, out.token_ids))[None], output_attentions=True).attentions
        for layer, attention in enumerate(attentions):
            expected = torch.zeros(attention.shape[1], len(out.memory))
            weights = attention[0, :, prompt.ids.shape[0]]  # (H, S) of the first new token, which predicts the second
            for position, row in enumerate(prompt.rows.tolist()):
                if row >= 0:
                    expected[:, row] += weights[:, position]
            for head in range(expected.shape[0]):
                got = out.provenance.attention([1], layer, head)
                assert torch.allclose(got, expected[head] / expected[head].sum(), atol=1e-4)
        assert "".join(out.provenance.tokens) == out.text


def test_a_sliding_window_leaves_only_the_total(tokenizer, book):
    """The prompt exceeds a sliding window of 24 tokens, or the answer pushes it out."""
    with Unlimiformer(tiny_decoder("gemma3_text"), tokenizer, window=64, top_k=12, block=4) as u:
        provenance = u.generate(book, prompt="w1", provenance=True, max_new_tokens=9, do_sample=False).provenance
    assert provenance.passages(1) and provenance.layers is None
    with pytest.raises(UnlimiformerError, match=r"passages\(\) gives that of all together"):
        provenance.spans()
