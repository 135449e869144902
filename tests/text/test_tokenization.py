"""Text in pieces gives the tokens of the whole text, for tokenizers of every kind."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from unlimiformer import UnlimiformerError
from unlimiformer.text import tokenization
from unlimiformer.text.formats.plain import decode_parts
from unlimiformer.text.sources import iter_text
from unlimiformer.text.tokenization import cut_text, stream_tokens

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog's not amused; it barks!",
    "To be, or not to be: that is the question — whether 'tis nobler in the mind to suffer.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 東京は日本の首都です。",
] * 20


def _byte_level_bpe():
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>"], show_progress=False))
    return core


def _word_piece():
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    core.train_from_iterator(CORPUS, trainer)
    return core


def _unigram(split: bool):
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.Replace(" ", "▁") if not split else None
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=split)
    core.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    core.train_from_iterator(CORPUS, trainer)
    return core


_CORES = {
    "bytes": _byte_level_bpe(),
    "word pieces": _word_piece(),
    "unigram": _unigram(split=True),
    "unigram over all text": _unigram(split=False),
}
TOKENIZERS = {name: PreTrainedTokenizerFast(tokenizer_object=core) for name, core in _CORES.items()}


def _stream(pieces, tokenizer):
    parts = list(stream_tokens(pieces, tokenizer))
    offsets = torch.cat([part.offsets for part in parts])
    return torch.cat([part.ids for part in parts]).tolist(), [tuple(pair) for pair in offsets.tolist()], len(parts)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_long_text_in_small_pieces(kind, monkeypatch):
    monkeypatch.setattr(tokenization, "PIECE", 300)
    text = "\n\n".join(CORPUS)
    whole = TOKENIZERS[kind](text, return_offsets_mapping=True)
    ids, offsets, parts = _stream([text[i : i + 41] for i in range(0, len(text), 41)], TOKENIZERS[kind])
    assert ids == whole["input_ids"]
    assert offsets == [tuple(pair) for pair in whole["offset_mapping"]]
    assert parts > 10, "the text was tokenized in one piece"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(["the", " dog", "  ", "\n", "'s", "東京", "ö", "fox,", "\t", "é", "…", "x" * 40]), min_size=1
    ),
    st.integers(20, 200),
    st.sampled_from(sorted(TOKENIZERS)),
)
def test_any_text_and_piece_size(words, piece, kind):
    text = "a" + "".join(words) * 7
    whole = TOKENIZERS[kind](text, return_offsets_mapping=True)
    before, tokenization.PIECE = tokenization.PIECE, piece
    try:
        ids, offsets, _ = _stream([text], TOKENIZERS[kind])
    finally:
        tokenization.PIECE = before
    assert ids == whole["input_ids"]
    assert offsets == [tuple(pair) for pair in whole["offset_mapping"]]


def test_special_tokens_only_at_start_and_end(tokenizer):
    ids, offsets, _ = _stream(["w1 w2"], tokenizer)
    assert ids == tokenizer("w1 w2")["input_ids"]
    assert offsets[0] == offsets[-1] == (0, 0)


def test_a_slow_tokenizer_gets_the_whole_text():
    class Slow:
        is_fast = False

        def __call__(self, text, **_):
            return {"input_ids": [ord(letter) for letter in text]}

    (tokens,) = stream_tokens(iter(["ab", "c"]), Slow())
    assert tokens.ids.tolist() == [97, 98, 99] and tokens.offsets is None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_bytes_cut_anywhere_are_decoded(size):
    text = "ö東京\r\nnext\rlast…\r"
    raw = text.encode()
    parts = [raw[i : i + size] for i in range(0, len(raw), size)]
    assert "".join(decode_parts(parts, "utf-8", "book.txt")) == text.replace("\r\n", "\n").replace("\r", "\n")
    broken = raw[:5] + b"\xff" + raw[5:]
    with pytest.raises(UnlimiformerError, match="byte 5 is 0xff"):
        list(decode_parts([broken[i : i + size] for i in range(0, len(broken), size)], "utf-8", "book.txt"))


def test_pieces_of_a_string():
    text = "".join(chr(97 + i % 26) for i in range(200_000))
    pieces = list(iter_text(text))
    assert "".join(pieces) == text and len(pieces) > 1


def test_pieces_join_to_the_text_where_a_character_has_several_tokens():
    class ByteTokenizer:
        def decode(self, ids, skip_special_tokens):
            return bytes(ids).decode("utf-8", errors="replace")

    assert tokenization.pieces(ByteTokenizer(), list("a…b".encode())) == ["a", "", "", "…", "b"]


def test_text_is_cut_into_pieces_of_so_many_tokens(tokenizer):
    text = "w1 w2  w3 w4\nw5 w6 w7 "
    assert cut_text(text, tokenizer, 3) == ["w1 w2  w3 ", "w4\nw5 w6 ", "w7 "]
    assert cut_text(text, tokenizer, 7) == [text]

    class Slow:
        is_fast = False

        def __call__(self, text, **_):
            return {"input_ids": [ord(letter) for letter in text]}

        def decode(self, ids):
            return "".join(map(chr, ids))

    assert cut_text("abcde", Slow(), 2) == ["ab", "cd", "e"]
