"""The converter of Marian checkpoints, on a tiny model that is saved as older versions of PyTorch did."""

from __future__ import annotations

import io
import json
import pickle

import pytest
import sentencepiece
import torch
from tiny_models import WINDOW, make

from unlimiformer import UnsupportedModelError
from unlimiformer.hub.converters.marian import convert
from unlimiformer.hub.loading import load


@pytest.fixture
def source(tmp_path):
    """The folder of a checkpoint: weights, configs, two SentencePiece models and a vocabulary."""
    folder = tmp_path / "source"
    folder.mkdir()
    model = make("marian")
    model.config.save_pretrained(folder)
    model.generation_config.num_beams = 3
    model.generation_config.save_pretrained(folder)
    _save_weights(model.state_dict(), folder)
    content = io.BytesIO()
    sentences = iter(["a cat sat on the mat", "the dog ran to the cat"])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences, model_writer=content, vocab_size=30, hard_vocab_limit=False, minloglevel=2
    )
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(content.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
    learned = [
        pieces.id_to_piece(i) for i in range(len(pieces)) if not pieces.is_control(i) and not pieces.is_unknown(i)
    ]
    words = ["<pad>", "<unk>", "</s>", *learned]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "fr"}')
    return folder


def _save_weights(state, folder):
    """As in real checkpoints, the output layer is not stored: it is the embedding."""
    torch.save(
        {name: weight for name, weight in state.items() if name != "lm_head.weight"}, folder / "pytorch_model.bin"
    )


def test_converted_model_is_the_same(source, tmp_path):
    out = tmp_path / "out"
    convert(source, out)
    assert not list(out.glob("*.bin"))
    converted, tokenizer = load(out)
    original = make("marian").state_dict()
    for name, weight in converted.state_dict().items():
        assert "embed_positions" in name or torch.equal(weight, original[name]), name  # positions are computed
    assert converted.generation_config.num_beams == 3
    assert tokenizer.model_max_length == WINDOW
    token_ids = tokenizer("the cat sat on the dog").input_ids
    assert token_ids[-1] == 2 and 1 not in token_ids
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "the cat sat on the dog"


def test_incomplete_weights_are_refused(source, tmp_path):
    state = make("marian").state_dict()
    del state["model.encoder.layers.1.fc1.weight"]
    _save_weights(state, source)
    with pytest.raises(
        UnsupportedModelError, match=r"1 tensors are missing \(model\.encoder\.layers\.1\.fc1\.weight\)"
    ):
        convert(source, tmp_path / "out")


def test_code_in_the_weights_is_not_run(source, tmp_path):
    marker = tmp_path / "ran"

    class Code:
        def __reduce__(self):
            return open, (str(marker), "w")

    torch.save({"weight": Code()}, source / "pytorch_model.bin")
    with pytest.raises(pickle.UnpicklingError):
        convert(source, tmp_path / "out")
    assert not marker.exists()
