"""Provenance adds up the attention that was paid, and names passages of the text."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make
from unlimiformer.memory import Memory
from unlimiformer.provenance.provenance import Provenance, _sentences

from unlimiformer import Unlimiformer, UnlimiformerError
from unlimiformer.engines.causal.engine import Query
from unlimiformer.text.tokenization import pieces

SETTINGS = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "num_beams": 1}


def test_weights_are_the_attention_by_hand(tokenizer, book):
    """With everything retrieved, the sums equal the unwrapped model's own cross-attentions over the same states."""
    from unlimiformer.engines.seq2seq.placeholder import PlaceholderOutput

    model = make("bart")
    model.set_attn_implementation("eager")
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=10**6) as u:
        out = u.generate(book, provenance=True, **SETTINGS)
        states = out.memory.store.states[None]
    with torch.no_grad():
        plain = model(
            encoder_outputs=PlaceholderOutput(last_hidden_state=states),
            attention_mask=torch.ones(states.shape[:2], dtype=torch.long),
            decoder_input_ids=out.sequences[:, :-1],
            output_attentions=True,
        )
    expected = torch.stack(plain.cross_attentions).sum(dim=(0, 1, 2, 3))  # layers, rows, heads, targets
    assert torch.allclose(out.provenance.weights, expected / expected.sum(), atol=1e-6)


def test_listening_changes_nothing(tokenizer, book):
    model = make("t5")
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9) as u:
        heard, unheard = (u.generate(book, provenance=flag, **SETTINGS) for flag in (True, False))
    assert torch.equal(heard.sequences, unheard.sequences)
    assert unheard.provenance is None
    assert torch.isclose(heard.provenance.weights.sum(), torch.tensor(1.0))


def test_heads_that_do_not_retrieve_are_not_heard(tokenizer, book):
    """One head alone and that head among all: what is heard of it is the same."""
    model = make("bart")
    heard = {}
    for heads in ((1,), (2,), (1, 2)):
        with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, layers=(0,), heads=heads) as u:
            settings = {**SETTINGS, "max_new_tokens": 1, "min_new_tokens": 1}
            heard[heads] = u.generate(book, provenance=True, **settings).provenance.weights
    assert torch.allclose(heard[1, 2], (heard[1,] + heard[2,]) / 2, atol=1e-5)
    assert not torch.allclose(heard[1,], heard[2,], atol=1e-3)


def test_each_input_of_a_batch_has_its_own(tokenizer, book):
    model = make("t5")
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9) as u:
        together = u.generate([book, book[:300]], provenance=True, **SETTINGS)
        alone = [u.generate(text, provenance=True, **SETTINGS) for text in (book, book[:300])]
    for a, b in zip(together, alone, strict=True):
        assert torch.allclose(a.provenance.weights, b.provenance.weights, atol=1e-5)


def _memory(tokens: int, offsets: bool = True) -> Memory:
    from unlimiformer.datastore import ExactStore

    places = torch.stack((torch.arange(tokens) * 5, torch.arange(tokens) * 5 + 4), dim=1)
    places[0] = 0  # a special token
    return Memory(ExactStore(torch.zeros(tokens, 8)), torch.zeros(tokens), None, 1, offsets=places if offsets else None)


def test_passages_are_the_heaviest_stretches():
    weights = torch.zeros(100)
    weights[0], weights[30], weights[33], weights[80] = 0.5, 0.2, 0.1, 0.2
    found = Provenance(_memory(100), weights, weights > 0).passages(count=5, tokens=10)
    assert len(found) == 2
    assert found[0].start <= 30 * 5 and found[0].end >= 33 * 5 + 4
    assert found[0].weight == pytest.approx(0.3)
    assert found[1].start <= 80 * 5 <= found[1].end
    with pytest.raises(UnlimiformerError, match="knows no text"):
        Provenance(_memory(100, offsets=False), weights, weights > 0).passages()


def _by_hand(model, memory, sequence, given):
    """What each generated token attended to (T, L, H, S), by the unwrapped model reading what was written."""
    from unlimiformer.engines.seq2seq.placeholder import PlaceholderOutput

    model.set_attn_implementation("eager")
    states = memory.store.states[None].float()
    with torch.no_grad():
        plain = model(
            encoder_outputs=PlaceholderOutput(last_hidden_state=states),
            attention_mask=torch.ones(states.shape[:2], dtype=torch.long),
            decoder_input_ids=sequence[None, :-1],
            output_attentions=True,
        )
    return torch.stack(plain.cross_attentions)[:, 0].permute(2, 0, 1, 3)[given - 1 :]


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
def test_every_token_of_the_winner_has_its_own(tokenizer, book, mode, inputs):
    """Also where beams overtake each other: the attention is that of the winner's ancestors."""
    torch.manual_seed(3)
    model = make("bart")
    texts = [book, book[200:]][:inputs]
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=10**6) as u:
        outs = u.generate(texts, prompt="w3 w4", provenance=True, max_new_tokens=12, **{"do_sample": False, **mode})
        assert u.hooks.listener is None
    for out in outs:
        expected = _by_hand(model, out.memory, out.token_ids, 3)
        looked = out.provenance
        length = next(iter(looked.layers.values())).index.shape[0]
        assert length >= 3 and sorted(looked.layers) == [0, 1]
        for layer, head, token in ((0, 0, 0), (1, 3, length - 1), (1, 2, length // 2)):
            found = looked.attention([token], layer, head)
            assert torch.allclose(found, expected[token, layer, head], atol=1e-5)
        together = expected[:length].sum(dim=(0, 1, 2))
        assert torch.allclose(looked.weights, together / together.sum(), atol=1e-6)
        assert "w3 w4 " + "".join(looked.words) == out.text


def test_beams_really_overtook_each_other(tokenizer, book):
    """What the test above needs: some winner's tokens were predicted by several rows."""
    torch.manual_seed(3)
    with Unlimiformer(make("bart"), tokenizer, window=WINDOW, top_k=10**6) as u:
        memory = u.index(book)
        made = u.model.generate(
            **u.engine._given([memory]),
            decoder_input_ids=u.engine.decoder_prompts(["w3 w4"]),
            max_new_tokens=12,
            num_beams=4,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
    assert len(set(made.beam_indices[0].tolist()) - {-1}) > 1


def test_spans_have_the_words_and_their_passages(tokenizer, book):
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=9) as u:
        out = u.generate(book, prompt="w3", provenance=True, **SETTINGS)
    looked = out.provenance
    tokens = looked.spans("token", count=1, tokens=10)
    assert "".join(span.text for span in tokens) == "".join(looked.words)
    for number, span in enumerate(tokens):
        assert looked.words[number] == span.text
        weights = looked.attention([number]).where(out.memory.offsets[:, 1] > 0, 0.0)
        best = max(float(weights[at : at + 10].sum()) for at in range(len(weights) - 9))
        assert span.passages[0].weight == pytest.approx(best, abs=1e-5)
    (whole,) = looked.spans("sentence", count=1, tokens=10)
    assert whole.text == "".join(looked.words)
    with pytest.raises(UnlimiformerError, match="the unit is 'page'; expected one of: token, sentence"):
        looked.spans("page")


def test_sentences_are_told_apart():
    text = "It is. Is it? 'Yes!' said no one"
    assert [text[a:b] for a, b in _sentences(text)] == ["It is.", " Is it?", " 'Yes!'", " said no one"]
    assert _sentences("  ") == []


def test_json_and_histogram(tokenizer, book):
    with Unlimiformer(make("bart"), tokenizer, window=WINDOW, top_k=9) as u:
        out = u.generate(book, provenance=True, num_beams=2, max_new_tokens=5, do_sample=False)
    told = json.loads(out.provenance.to_json())
    assert told["answer"] == out.text and sum(told["histogram"]) == pytest.approx(1, abs=1e-4)
    for each in (*told["tokens"], *told["sentences"], told):
        assert all(passage["text"] == book[passage["start"] : passage["end"]] for passage in each["passages"])
    weights = out.provenance.weights
    first_half = out.memory.offsets[:, 0] * 2 <= int(out.memory.offsets[:, 0].max())
    assert out.provenance.histogram(2)[0] == pytest.approx(float(weights[first_half].sum()), abs=1e-6)


@pytest.mark.parametrize("mode", [{"num_beams": 1}, {"num_beams": 3}])
def test_a_decoder_only_models_tokens_by_hand(tokenizer, book, mode):
    """The attention of the answer's tokens to the chosen ones, by the plain model reading prompt and answer at once."""
    model = tiny_decoder("llama")
    with Unlimiformer(model, tokenizer, window=64, top_k=12, block=4) as u:
        memories = [u.index(book), u.index(book[300:])]
        outs = u.generate(memories, prompt=["w1 w2", "w5"], provenance=True, max_new_tokens=5, do_sample=False, **mode)
        implementation = model.config._attn_implementation
        prompts = [
            u.engine._laid_out(Query(m, u.engine.prompts.tail(p)))
            for m, p in zip(memories, ("w1 w2", "w5"), strict=True)
        ]
    assert implementation != "eager"
    model.set_attn_implementation("eager")
    for out, prompt in zip(outs, prompts, strict=True):
        with torch.no_grad():
            seen = model(torch.cat((prompt.ids, out.token_ids))[None], output_attentions=True).attentions
        for layer, attention in enumerate(seen):
            expected = torch.zeros(attention.shape[1], len(out.memory))
            rows = attention[0, :, prompt.ids.shape[0] - 1 + 1]  # predicts the second token
            for at, place in enumerate(prompt.places.tolist()):
                if place >= 0:
                    expected[:, place] += rows[:, at]
            for head in range(expected.shape[0]):
                found = out.provenance.attention([1], layer, head)
                assert torch.allclose(found, expected[head] / expected[head].sum(), atol=1e-4)
        assert "".join(out.provenance.words) == out.text


def test_layers_that_keep_only_the_latest_tell_of_all_together(tokenizer, book):
    """The prompt fits a sliding window of 24 tokens no longer, or the answer pushes it out."""
    with Unlimiformer(tiny_decoder("gemma3_text"), tokenizer, window=64, top_k=12, block=4) as u:
        looked = u.generate(book, prompt="w1", provenance=True, max_new_tokens=9, do_sample=False).provenance
    assert looked.passages(1) and looked.layers is None
    with pytest.raises(UnlimiformerError, match=r"passages\(\) tells it of all together"):
        looked.spans()


def test_rows_that_are_stopped_one_by_one(tokenizer, book):
    """What follows is padding and counts for nothing."""

    def stop(ids, scores, **_):
        return torch.tensor([row == 0 and ids.shape[1] >= 4 for row in range(ids.shape[0])])

    with Unlimiformer(make("bart"), tokenizer, window=WINDOW, top_k=9) as u:
        settings = {"provenance": True, "max_new_tokens": 9, "do_sample": False, "stopping_criteria": [stop]}
        short, long = u.generate([book, book[200:]], **settings)
        beams = u.generate(book, num_beams=3, **settings)
        with pytest.raises(UnlimiformerError, match="use_cache off"):
            u.generate(book, use_cache=False, **settings)
        given = u.generate(book, decoder_input_ids=torch.tensor([[2, 7, 8]]), **settings)
    assert len(short.provenance.layers[0].index) == 3 < len(long.provenance.layers[0].index)
    assert beams.provenance.spans("token")
    assert len(given.provenance.words) == given.token_ids.shape[0] - 3 and given.provenance.spans("token")


def test_pieces_make_up_the_text():
    """Also where a character has several tokens."""

    class Bytes:
        def decode(self, ids, skip_special_tokens):
            return bytes(ids).decode("utf-8", errors="replace")

    ids = list("a…b".encode())
    assert pieces(Bytes(), ids) == ["a", "", "", "…", "b"]
