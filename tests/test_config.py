"""Each setting does what its line in the docstring says."""

from __future__ import annotations

import pytest
import torch
from reference import concatenated_states, logits_over, relative
from tiny_models import WINDOW, make, random_ids

from unlimiformer import Unlimiformer, UnlimiformerConfig, UnlimiformerError

LONG = 150
ALL = 10**6


@pytest.fixture
def model():
    return make("bart")


def _target():
    return random_ids(1, 5, seed=2)


@torch.no_grad()
def _logits(model, ids, **settings):
    settings = {"window": WINDOW, **settings}
    with Unlimiformer(model, **settings):
        return model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=_target()).logits


def test_no_layer_retrieving_is_the_truncated_model(model):
    ids = random_ids(1, LONG)
    truncated = logits_over(model, concatenated_states(model, ids[0, :WINDOW], WINDOW), _target())
    assert relative(_logits(model, ids, layers=()), truncated) < 2e-5
    assert relative(_logits(model, ids, heads=()), truncated) < 2e-5


def test_layers_and_heads_choose_who_retrieves(model):
    ids = random_ids(1, LONG)
    all_of_them = _logits(model, ids, top_k=ALL)
    assert torch.allclose(_logits(model, ids, top_k=ALL, layers=(0, 1), heads=(0, 1, 2, 3)), all_of_them, atol=1e-4)
    seen = [_logits(model, ids, top_k=ALL, **s) for s in ({"layers": (0,)}, {"layers": (1,)}, {"heads": (0, 2)})]
    assert all(relative(logits, all_of_them) > 1e-3 for logits in seen)
    assert relative(seen[0], seen[1]) > 1e-3


def test_one_head_retrieving_equals_one_head_over_everything(model):
    """By hand: the last layer's head 1 sees all states, every other head the first window."""
    ids = random_ids(1, LONG)
    everything = concatenated_states(model, ids[0], WINDOW)
    first = concatenated_states(model, ids[0, :WINDOW], WINDOW)
    attention = model.get_decoder().layers[1].encoder_attn
    original = attention.forward

    def by_hand(hidden_states, key_value_states=None, **kwargs):
        outs = []
        for states in (everything, first):
            q = attention.q_proj(hidden_states).view(1, -1, 4, 8).transpose(1, 2)
            k, v = (p(states).view(1, -1, 4, 8).transpose(1, 2) for p in (attention.k_proj, attention.v_proj))
            outs.append(torch.nn.functional.scaled_dot_product_attention(q, k, v))
        mixed = outs[1].clone()
        mixed[:, 1] = outs[0][:, 1]
        return attention.out_proj(mixed.transpose(1, 2).flatten(2)), None

    attention.forward = by_hand
    expected = logits_over(model, first, _target())
    attention.forward = original
    del attention.__dict__["forward"]
    assert relative(_logits(model, ids, top_k=ALL, layers=(1,), heads=(1,)), expected) < 2e-5


def test_a_memory_serves_whatever_layers_and_heads_retrieve(model):
    ids = random_ids(LONG)
    with Unlimiformer(model, window=WINDOW) as u:
        memory = u.index(ids)
    with Unlimiformer(model, window=WINDOW, layers=(0,)) as u:
        again = u.index(ids)
        expected = u.generate(again, max_new_tokens=4).token_ids
        assert torch.equal(u.generate(memory, max_new_tokens=4).token_ids, expected)


def test_window_and_overlap_change_the_states(model):
    ids = random_ids(1, LONG)
    for window, overlap in ((16, 0.5), (32, 0.0), (24, 0.75)):
        expected = logits_over(model, concatenated_states(model, ids[0], window, overlap), _target())
        assert relative(_logits(model, ids, top_k=ALL, window=window, overlap=overlap), expected) < 2e-5


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 2e-5), ("bfloat16", 2e-2), ("int8", 4e-2)])
def test_dtypes_of_the_store(model, dtype, allowed):
    ids = random_ids(1, LONG)
    assert relative(_logits(model, ids, top_k=ALL, dtype=dtype), _logits(model, ids, top_k=ALL)) < allowed
    with Unlimiformer(model, window=WINDOW, dtype=dtype) as u:
        assert str(u.index(ids[0]).store.states.dtype) == f"torch.{dtype}"


def test_batch_size_changes_nothing(model):
    ids = random_ids(1, LONG)
    assert relative(_logits(model, ids, batch_size=1), _logits(model, ids, batch_size=7)) < 2e-5


def test_compute_dtype_autocasts_the_encoder(model):
    ids = random_ids(1, LONG)
    full = _logits(model, ids, top_k=ALL)
    half = _logits(model, ids, top_k=ALL, compute_dtype="bfloat16")
    assert 1e-5 < relative(half, full) < 0.1


def test_the_device_of_the_store(model):
    assert relative(_logits(model, random_ids(1, LONG), device="cpu"), _logits(model, random_ids(1, LONG))) == 0


def test_a_prefix_stands_before_every_window(model, tokenizer, book):
    """By hand: every window is <s> prefix chunk; the prefix's states are kept once, from the first."""
    from unlimiformer.text.windows import plan_windows

    prefix = tokenizer("w7 w8 w9")["input_ids"][:-1]
    text = tokenizer(book)["input_ids"][1:]
    parts = []
    for win in plan_windows(len(text), WINDOW - len(prefix)):
        ids = torch.tensor([[*prefix, *text[win.start : win.end]]])
        with torch.no_grad():
            states = model.get_encoder()(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
        begin = 0 if win.keep_start == 0 else len(prefix) + win.keep_start - win.start
        parts.append(states[:, begin : len(prefix) + win.keep_end - win.start])
    expected = logits_over(model, torch.cat(parts, dim=1), _target())
    ids = tokenizer(book, return_tensors="pt")["input_ids"]
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=ALL, prefix="w7 w8 w9") as u, torch.no_grad():
        got = model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=_target()).logits
        memory = u.index(book)
        assert memory.prefix_tokens == 4
        assert memory.token_ids.tolist() == [*prefix, *text]
        begin, end = memory.offsets[4].tolist()
        assert book[begin:end] == book.split()[0]
    assert relative(got, expected) < 2e-5


def test_a_prefix_and_a_short_text_equal_the_model_on_both(model, tokenizer):
    both = tokenizer("w7 w8 w9 w1 w2 w3", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = model(input_ids=both, decoder_input_ids=_target()).logits
    ids = tokenizer("w1 w2 w3", return_tensors="pt")["input_ids"]
    with Unlimiformer(model, tokenizer, window=WINDOW, prefix="w7 w8 w9"), torch.no_grad():
        got = model(input_ids=ids, decoder_input_ids=_target()).logits
    assert relative(got, expected) < 2e-5


def test_ragged_prefixes_in_a_batch(model, tokenizer, book):
    prefixes = ["w1", "w2 w3 w4 w5 w6", "w7 w8"]
    texts = [book, book[: len(book) // 2], book[-60:]]
    settings = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9) as u:
        together = u.generate(texts, prefix=prefixes, **settings)
        for text, prefix, out in zip(texts, prefixes, together, strict=True):
            assert torch.equal(u.generate(text, prefix=prefix, **settings).token_ids, out.token_ids)
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, prefix=prefixes):
        encoded = tokenizer(texts, return_tensors="pt", padding=True)
        encoded.pop("token_type_ids", None)
        batch = model.generate(**encoded, **settings)
    assert [row.tolist() for row in batch] == [out.token_ids.tolist() for out in together]


def test_the_prompt_starts_the_answer(model, tokenizer, book):
    with Unlimiformer(model, tokenizer, window=WINDOW) as u:
        out = u.generate(book, prompt="w5 w6", max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert out.text.startswith("w5 w6 ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_k": 0}, "top_k is 0; expected a whole number of at least 1"),
        ({"top_k": -3}, "top_k is -3"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"overlap": 1.0}, "overlap is 1.0; expected 0 <= overlap < 1"),
        ({"overlap": -0.5}, "overlap is -0.5"),
        ({"window": 0}, "window is 0"),
        ({"dtype": "float8"}, "dtype is 'float8'; expected one of: None, float32, bfloat16, int8"),
        ({"store": "magic"}, "store is 'magic'"),
        ({"layers": (-1,)}, "layers is"),
        ({"compute_dtype": "int8"}, "compute_dtype is 'int8'"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, words):
    with pytest.raises(UnlimiformerError) as error:
        UnlimiformerConfig(**settings)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": 1000}, "window is 1000; the encoder reads at most 32"),
        ({"layers": (5,)}, r"layers is \[5\]; the decoder has 2"),
        ({"heads": (9,)}, r"heads is \[9\]; the decoder has 4"),
        ({"topk": 3}, "unknown setting topk"),
    ],
)
def test_settings_that_do_not_fit_the_model_leave_it_untouched(model, settings, words):
    with pytest.raises(UnlimiformerError, match=words):
        Unlimiformer(model, **settings)
    assert not any("forward" in module.__dict__ for module in model.modules())
