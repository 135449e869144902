"""Traces of an encoder–decoder's attention, compared with the unwrapped model's own cross-attentions."""

from __future__ import annotations

import pytest
import torch
from reference import encoded
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer, UnlimiformerError

GREEDY = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "num_beams": 1}
PROMPT = "w3 w4"


def _attention_by_hand(model, memory, sequence, prompt_length):
    """Attention (T, L, H, S) of each generated token, by the unwrapped model that reads the whole sequence (n,)."""
    model.set_attn_implementation("eager")
    states = memory.store.states[None].float()
    with torch.no_grad():
        output = model(**encoded(states), decoder_input_ids=sequence[None, :-1], output_attentions=True)
    return torch.stack(output.cross_attentions)[:, 0].permute(2, 0, 1, 3)[prompt_length - 1 :]


def test_weights_are_the_sum_of_all_attention(tokenizer, book):
    model = make("bart")
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=10**6) as u:
        out = u.generate(book, provenance=True, **GREEDY)
    expected = _attention_by_hand(model, out.memory, out.token_ids, 1).sum(dim=(0, 1, 2))
    assert torch.allclose(out.provenance.weights, expected / expected.sum(), atol=1e-6)


def test_tracing_changes_nothing(tokenizer, book):
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=9) as u:
        traced, plain = (u.generate(book, provenance=flag, **GREEDY) for flag in (True, False))
    assert torch.equal(traced.sequences, plain.sequences)
    assert plain.provenance is None
    assert torch.isclose(traced.provenance.weights.sum(), torch.tensor(1.0))


def test_heads_that_do_not_retrieve_are_left_out(tokenizer, book):
    """The weights of two heads are the mean of those of each head alone."""
    model, weights = make("bart"), {}
    settings = {**GREEDY, "max_new_tokens": 1, "min_new_tokens": 1}
    for heads in ((1,), (2,), (1, 2)):
        with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, layers=(0,), heads=heads) as u:
            weights[heads] = u.generate(book, provenance=True, **settings).provenance.weights
    assert torch.allclose(weights[1, 2], (weights[1,] + weights[2,]) / 2, atol=1e-5)
    assert not torch.allclose(weights[1,], weights[2,], atol=1e-3)


def test_each_input_of_a_batch_has_its_own_provenance(tokenizer, book):
    texts = [book, book[:300]]
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=9) as u:
        batch = u.generate(texts, provenance=True, **GREEDY)
        single = [u.generate(text, provenance=True, **GREEDY) for text in texts]
    for out, expected in zip(batch, single, strict=True):
        assert torch.allclose(out.provenance.weights, expected.provenance.weights, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "inputs"),
    [
        ({"num_beams": 1}, 1),
        ({"num_beams": 4}, 1),
        ({"num_beams": 4, "num_return_sequences": 2}, 2),
        ({"do_sample": True, "num_return_sequences": 3}, 2),
        ({"do_sample": True, "num_beams": 3}, 2),
    ],
)
def test_every_token_has_its_own_attention(tokenizer, book, mode, inputs):
    """Also if the rows of beams change: the attention is that of the rows which predicted the winner's tokens."""
    torch.manual_seed(3)
    model = make("bart")
    texts = [book, book[200:]][:inputs]
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=10**6) as u:
        outs = u.generate(texts, prompt=PROMPT, provenance=True, max_new_tokens=12, **{"do_sample": False, **mode})
    for out in outs:
        expected = _attention_by_hand(model, out.memory, out.token_ids, 3)
        provenance = out.provenance
        length = next(iter(provenance.layers.values())).index.shape[0]
        assert length >= 3 and sorted(provenance.layers) == [0, 1]
        for layer, head, token in ((0, 0, 0), (1, 3, length - 1), (1, 2, length // 2)):
            weights = provenance.attention([token], layer, head)
            assert torch.allclose(weights, expected[token, layer, head], atol=1e-5)
        total = expected[:length].sum(dim=(0, 1, 2))
        assert torch.allclose(provenance.weights, total / total.sum(), atol=1e-6)
        assert f"{PROMPT} {''.join(provenance.tokens)}" == out.text


def test_the_winner_of_these_beams_comes_from_several_rows(tokenizer, book):
    """The test above needs it."""
    torch.manual_seed(3)
    prompt_ids = tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    with Unlimiformer(make("bart"), tokenizer, window=WINDOW, top_k=10**6) as u:
        memory = u.index(book)
        out = u.model.generate(
            **u.engine.encoder_outputs([memory]),
            decoder_input_ids=torch.tensor([[u.model.config.decoder_start_token_id, *prompt_ids]]),
            max_new_tokens=12,
            num_beams=4,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
    assert len(set(out.beam_indices[0].tolist()) - {-1}) > 1


def test_rows_that_end_early(tokenizer, book):
    """The padding behind a row that has ended counts for nothing."""

    def stop_first_row(ids, scores, **_):
        return torch.tensor([row == 0 and ids.shape[1] >= 4 for row in range(ids.shape[0])])

    with Unlimiformer(make("bart"), tokenizer, window=WINDOW, top_k=9) as u:
        settings = {"provenance": True, "max_new_tokens": 9, "do_sample": False, "stopping_criteria": [stop_first_row]}
        short, long = u.generate([book, book[200:]], **settings)
        beams = u.generate(book, num_beams=3, **settings)
        with pytest.raises(UnlimiformerError, match="use_cache=False"):
            u.generate(book, use_cache=False, **settings)
        prompted = u.generate(book, decoder_input_ids=torch.tensor([[2, 7, 8]]), **settings)
    assert len(short.provenance.layers[0].index) == 3 < len(long.provenance.layers[0].index)
    assert beams.provenance.spans("token")
    assert len(prompted.provenance.tokens) == prompted.token_ids.shape[0] - 3 and prompted.provenance.spans("token")
