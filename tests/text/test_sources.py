"""Inputs of the Python interface: every form that is accepted, and the error message for each that is not."""

from __future__ import annotations

import pytest
import torch
from tiny_models import VOCABULARY, WINDOW, make, random_ids

from unlimiformer import Unlimiformer, UnlimiformerError
from unlimiformer.errors import InputError
from unlimiformer.text.formats.plain import decode_parts

GENERATION = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}


@pytest.fixture
def model():
    return make("bart")


def test_text_path_ids_and_pieces_give_the_same_output(model, tokenizer, book, tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(book)
    ids = tokenizer(book)["input_ids"]
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=9) as u:
        outputs = [
            u.generate(source, **GENERATION).token_ids.tolist()
            for source in (book, path, ids, torch.tensor(ids), iter([book[:50], book[50:]]), u.index(book))
        ]
    assert all(output == outputs[0] for output in outputs)


def test_sources_of_a_wrong_type_or_shape_are_refused(model, tokenizer, book):
    with Unlimiformer(model, tokenizer, window=WINDOW) as u:
        for source, message in (
            (random_ids(2, 50), r"shape \(2, 50\)"),
            (torch.rand(50), "expected whole numbers"),
            (tokenizer(book), "of a tokenizer's answer, give its input_ids"),
            ([book.encode()], "not text"),
            (7, "the input is of type int; expected a text, a path, token ids"),
        ):
            with pytest.raises(InputError, match=message):
                u.index(source)
        assert len(u.index(random_ids(1, 50))) == len(u.index(random_ids(50).numpy())) == 50


def test_a_first_word_that_prefix_and_text_share_is_kept_in_both():
    """T5 has no special token at the start of an input, and only special tokens may be dropped after a prefix."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(
        models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "the": 3, "play": 4, "what": 5}, unk_token="play")
    )
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    plain = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>", bos_token="<s>")
    with Unlimiformer(make("t5"), plain, window=WINDOW) as u:
        memory = u.index("the play the play", prefix="the what")
    assert memory.token_ids.tolist() == [3, 5, 3, 4, 3, 4]
    assert memory.offsets.tolist()[2] == [0, 3]


def test_offsets_point_into_the_text(model, tokenizer, book):
    with Unlimiformer(model, tokenizer, window=WINDOW) as u:
        memory = u.index(book)
    words = [book[start:end] for start, end in memory.offsets.tolist()]
    assert words[0] == "" and words[-1] == ""
    assert " ".join(words[1:-1]) == book


def test_progress_callback(model, tokenizer, book):
    calls = []
    with Unlimiformer(model, tokenizer, window=WINDOW) as u:
        memory = u.index(book, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (memory.windows, memory.windows)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


@pytest.mark.parametrize("source", ["", "  \n "])
def test_empty_text_is_refused(model, tokenizer, source):
    with Unlimiformer(model, tokenizer) as u, pytest.raises(UnlimiformerError, match="empty"):
        u.index(source)


def test_one_token_and_less_than_a_window_are_accepted(model, tokenizer):
    with Unlimiformer(model, tokenizer) as u:
        assert u.generate(torch.tensor([5]), **GENERATION).token_ids.shape == (5,)
        assert u.index("w1 w2").windows == 1


def test_a_prefix_longer_than_the_window_is_refused(model, tokenizer, book):
    message = "prefix has 81 tokens and the window 32"
    with Unlimiformer(model, tokenizer, window=WINDOW) as u, pytest.raises(UnlimiformerError, match=message):
        u.index(book, prefix="w1 " * 80)


def test_ids_beyond_the_vocabulary_are_refused(model):
    with Unlimiformer(model) as u:
        with pytest.raises(UnlimiformerError, match=f"token id 5000 and the model {VOCABULARY} embeddings"):
            u.index(torch.tensor([3, 5000]))
        with pytest.raises(UnlimiformerError, match="token id -4"):
            u.index(torch.tensor([3, -4]))


def test_a_tokenizer_that_does_not_fit_is_refused(model, tokenizer):
    other = make("bart")
    other.config.pad_token_id, other.config.eos_token_id, other.config.bos_token_id = 40, 41, 42
    with pytest.raises(UnlimiformerError, match=r"different special tokens \(pad_token_id 0 and 40"):
        Unlimiformer(other, tokenizer)
    other.resize_token_embeddings(50)
    with pytest.raises(UnlimiformerError, match=r"the tokenizer's ids go up to .* and the model has 50 embeddings"):
        Unlimiformer(other, tokenizer)
    assert not any("forward" in module.__dict__ for module in other.modules())


@pytest.mark.parametrize("parameter", ["encoder.layers.0.fc1.weight", "decoder.layers.1.encoder_attn.k_proj.weight"])
def test_weights_with_nan_are_refused(model, parameter):
    with torch.no_grad():
        model.model.get_parameter(parameter)[0, 0] = float("nan")
    with pytest.raises(UnlimiformerError, match="has NaN or infinite numbers"):
        Unlimiformer(model)


def test_infinite_states_are_refused(model):
    with Unlimiformer(model, window=WINDOW) as u:
        with torch.no_grad():
            model.model.encoder.layers[0].fc1.weight[0, 0] = float("inf")
        with pytest.raises(UnlimiformerError, match="NaN or infinite states"):
            u.index(random_ids(100))


def test_text_without_a_tokenizer_is_refused(model):
    with Unlimiformer(model) as u, pytest.raises(UnlimiformerError, match="no tokenizer"):
        u.index("some text")


@pytest.mark.parametrize("parts", [[b"\xef\xbb\xbfone", b" two"], [b"\xef", b"\xbb\xbfone two"], [b"one two"]])
def test_a_byte_order_mark_is_no_part_of_the_text(parts):
    assert "".join(decode_parts(parts, "utf-8", "a file")) == "one two"


def test_unreadable_files_are_refused(model, tokenizer, tmp_path):
    (tmp_path / "noise.txt").write_bytes(bytes(range(256)) * 8)
    with Unlimiformer(model, tokenizer) as u:
        with pytest.raises(InputError, match=r"noise\.txt is not a text"):
            u.index(tmp_path / "noise.txt")
        with pytest.raises(InputError, match="does not exist"):
            u.index(tmp_path / "missing.txt")
        with pytest.raises(InputError, match="is a folder"):
            u.index(tmp_path)


def test_a_memory_of_another_model_is_refused(model, tokenizer, book):
    with Unlimiformer(model, tokenizer, window=WINDOW) as u:
        memory = u.index(book)
    wrappers = (
        (make("bart", seed=1), {}, "another model"),
        (model, {"overlap": 0.25}, "overlap 0.5 instead of 0.25"),
        (model, {"dtype": "int8"}, "dtype float32 instead of int8"),
        (model, {"prefix": "w1 w2"}, "another prefix"),
    )
    for other, settings, difference in wrappers:
        u = Unlimiformer(other, tokenizer, window=WINDOW, **settings)
        with u, pytest.raises(UnlimiformerError, match=f"made with {difference}"):
            u.generate(memory)


def test_a_memory_is_refused_after_one_weight_changed(tokenizer, book):
    model = make("bart")
    with Unlimiformer(model, tokenizer, window=WINDOW) as u:
        memory = u.index(book)
        with torch.no_grad():
            next(iter(u.model.get_encoder().layers)).fc1.weight[3, 5] += 1e-3
        with pytest.raises(UnlimiformerError, match="another model"):
            u.generate(memory)


def test_a_local_model_folder_is_loaded(tokenizer, book, tmp_path):
    make("t5").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    u = Unlimiformer.from_pretrained(tmp_path / "model", top_k=9)
    assert u.generate(book, **GENERATION).token_ids.shape == (5,)
    u.remove()
    with pytest.raises(UnlimiformerError, match=r"has no config\.json"):
        Unlimiformer.from_pretrained(tmp_path)
    with pytest.raises(UnlimiformerError, match="cannot load 'nobody/nothing'"):
        Unlimiformer.from_pretrained("nobody/nothing")
