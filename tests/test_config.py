"""Each setting of `UnlimiformerConfig` does what its docstring says; invalid ones are refused."""

from __future__ import annotations

import pytest
import torch
from reference import concatenated_states, logits_over, relative
from tiny_models import WINDOW, make, random_ids

from unlimiformer import Unlimiformer, UnlimiformerConfig, UnlimiformerError
from unlimiformer.errors import InputError

LONG = 150
ALL = 10**6  # a top_k that no input reaches


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


def test_without_retrieval_it_equals_the_truncated_model(model):
    ids = random_ids(1, LONG)
    truncated = logits_over(model, concatenated_states(model, ids[0, :WINDOW], WINDOW), _target())
    assert relative(_logits(model, ids, layers=()), truncated) < 2e-5
    assert relative(_logits(model, ids, heads=()), truncated) < 2e-5


def test_layers_and_heads_select_where_to_retrieve(model):
    ids = random_ids(1, LONG)
    everywhere = _logits(model, ids, top_k=ALL)
    assert torch.allclose(_logits(model, ids, top_k=ALL, layers=(0, 1), heads=(0, 1, 2, 3)), everywhere, atol=1e-4)
    partly = [_logits(model, ids, top_k=ALL, **s) for s in ({"layers": (0,)}, {"layers": (1,)}, {"heads": (0, 2)})]
    assert all(relative(logits, everywhere) > 1e-3 for logits in partly)
    assert relative(partly[0], partly[1]) > 1e-3


def test_one_retrieving_head_equals_one_head_over_all_states(model):
    """Computed by hand: head 1 of the last layer attends to all states, every other head to the first window."""
    ids = random_ids(1, LONG)
    all_states = concatenated_states(model, ids[0], WINDOW)
    first_window = concatenated_states(model, ids[0, :WINDOW], WINDOW)
    attention = model.get_decoder().layers[1].encoder_attn
    original = attention.forward

    def by_hand(hidden_states, key_value_states=None, **kwargs):
        contexts = []
        for states in (all_states, first_window):
            q = attention.q_proj(hidden_states).view(1, -1, 4, 8).transpose(1, 2)
            k, v = (p(states).view(1, -1, 4, 8).transpose(1, 2) for p in (attention.k_proj, attention.v_proj))
            contexts.append(torch.nn.functional.scaled_dot_product_attention(q, k, v))
        context = contexts[1].clone()
        context[:, 1] = contexts[0][:, 1]
        return attention.out_proj(context.transpose(1, 2).flatten(2)), None

    attention.forward = by_hand
    expected = logits_over(model, first_window, _target())
    attention.forward = original
    del attention.__dict__["forward"]
    assert relative(_logits(model, ids, top_k=ALL, layers=(1,), heads=(1,)), expected) < 2e-5


def test_a_memory_does_not_depend_on_the_retrieving_layers(model):
    ids = random_ids(LONG)
    with Unlimiformer(model, window=WINDOW) as u:
        memory = u.index(ids)
    with Unlimiformer(model, window=WINDOW, layers=(0,)) as u:
        expected = u.generate(u.index(ids), max_new_tokens=4).token_ids
        assert torch.equal(u.generate(memory, max_new_tokens=4).token_ids, expected)


def test_window_and_overlap_change_the_states(model):
    ids = random_ids(1, LONG)
    for window, overlap in ((16, 0.5), (32, 0.0), (24, 0.75)):
        expected = logits_over(model, concatenated_states(model, ids[0], window, overlap), _target())
        assert relative(_logits(model, ids, top_k=ALL, window=window, overlap=overlap), expected) < 2e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 2e-2), ("int8", 4e-2)])
def test_dtype_of_the_stored_states(model, dtype, tolerance):
    ids = random_ids(1, LONG)
    assert relative(_logits(model, ids, top_k=ALL, dtype=dtype), _logits(model, ids, top_k=ALL)) < tolerance
    with Unlimiformer(model, window=WINDOW, dtype=dtype) as u:
        assert str(u.index(ids[0]).store.states.dtype) == f"torch.{dtype}"


def test_batch_size_does_not_change_the_result(model):
    ids = random_ids(1, LONG)
    assert relative(_logits(model, ids, batch_size=1), _logits(model, ids, batch_size=7)) < 2e-5


def test_compute_dtype_autocasts_the_encoder(model):
    ids = random_ids(1, LONG)
    float32 = _logits(model, ids, top_k=ALL)
    bfloat16 = _logits(model, ids, top_k=ALL, compute_dtype="bfloat16")
    assert 1e-5 < relative(bfloat16, float32) < 0.1


@pytest.mark.parametrize(("device", "expected"), [(None, "cpu"), ("cpu", "cpu"), ("meta", "meta")])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_device_of_the_stored_states(model, device, expected, dtype):
    with Unlimiformer(model, window=WINDOW, device=device, dtype=dtype) as u:
        store = u.index(random_ids(LONG)).store
    arrays = (store.states, store.scales) if dtype == "int8" else (store.states,)
    assert [array.device.type for array in arrays] == [expected] * len(arrays)


def test_cells_is_an_alias_of_the_store_ivf():
    assert UnlimiformerConfig(store="cells") == UnlimiformerConfig(store="ivf")
    assert UnlimiformerConfig(store="cells").store == "ivf"


def test_a_prefix_is_encoded_with_every_window(model, tokenizer, book):
    """Computed by hand: every window is <s> prefix chunk; the prefix's states are kept once, from the first window."""
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
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=_target()).logits
        memory = u.index(book)
        assert memory.prefix_tokens == 4
        assert memory.token_ids.tolist() == [*prefix, *text]
        begin, end = memory.offsets[4].tolist()
        assert book[begin:end] == book.split()[0]
    assert relative(logits, expected) < 2e-5


def test_a_prefix_and_a_short_text_equal_the_unwrapped_model(model, tokenizer):
    joined = tokenizer("w7 w8 w9 w1 w2 w3", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = model(input_ids=joined, decoder_input_ids=_target()).logits
    ids = tokenizer("w1 w2 w3", return_tensors="pt")["input_ids"]
    with Unlimiformer(model, tokenizer, window=WINDOW, prefix="w7 w8 w9"), torch.no_grad():
        logits = model(input_ids=ids, decoder_input_ids=_target()).logits
    assert relative(logits, expected) < 2e-5


def test_prefixes_of_different_length_in_a_batch(model, tokenizer, book):
    prefixes = ["w1", "w2 w3 w4 w5 w6", "w7 w8"]
    texts = [book, book[: len(book) // 2], book[-60:]]
    generation = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9) as u:
        outputs = u.generate(texts, prefix=prefixes, **generation)
        for text, prefix, output in zip(texts, prefixes, outputs, strict=True):
            assert torch.equal(u.generate(text, prefix=prefix, **generation).token_ids, output.token_ids)
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9, prefix=prefixes):
        encoded = tokenizer(texts, return_tensors="pt", padding=True)
        encoded.pop("token_type_ids", None)
        batch = model.generate(**encoded, **generation)
    assert [row.tolist() for row in batch] == [output.token_ids.tolist() for output in outputs]


def test_the_output_starts_with_the_prompt(model, tokenizer, book):
    with Unlimiformer(model, tokenizer, window=WINDOW) as u:
        output = u.generate(book, prompt="w5 w6", max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert output.text.startswith("w5 w6 ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 0}, "top_k is 0; expected a whole number of at least 1"),
        ({"top_k": -3}, "top_k is -3"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"overlap": 1.0}, "overlap is 1.0; expected 0 <= overlap < 1"),
        ({"overlap": -0.5}, "overlap is -0.5"),
        ({"window": 0}, "window is 0"),
        ({"dtype": "float8"}, "dtype is 'float8'; expected one of: None, float32, bfloat16, int8"),
        ({"store": "magic"}, "store is 'magic'; expected one of: exact, auto, ivf, faiss"),
        ({"layers": (-1,)}, "layers is"),
        ({"compute_dtype": "int8"}, "compute_dtype is 'int8'"),
    ],
)
def test_invalid_settings_are_refused_by_name(settings, message):
    with pytest.raises(InputError) as error:
        UnlimiformerConfig(**settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 1000}, "window is 1000; the encoder reads at most 32"),
        ({"layers": (5,)}, r"layers is \[5\]; the decoder has 2"),
        ({"heads": (9,)}, r"heads is \[9\]; the decoder has 4"),
        ({"topk": 3}, "unknown setting topk"),
    ],
)
def test_settings_that_do_not_fit_the_model_leave_it_unchanged(model, settings, message):
    with pytest.raises(UnlimiformerError, match=message):
        Unlimiformer(model, **settings)
    assert not any("forward" in module.__dict__ for module in model.modules())
