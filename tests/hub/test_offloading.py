"""Models that accelerate spreads over CPU and disk answer as they do in one piece."""

from __future__ import annotations

import accelerate
import pytest
import torch
from conftest import make_book, save
from tiny_causal_models import tiny_decoder
from tiny_models import make

from unlimiformer import Memory, Unlimiformer
from unlimiformer.adapters.base import plain_device
from unlimiformer.hub.loading import load

LAYERS = {"t5": "decoder.block", "bart": "model.decoder.layers", "llama": "model.layers"}


def _folder(tmp_path, family, tokenizer):
    model = tiny_decoder(family) if family == "llama" else make(family)
    return save(tmp_path / "model", model, tokenizer)


def _tied(family):
    """What shares its weights with another part, and buffers."""
    tied = {"t5": ["encoder.embed_tokens", "decoder.embed_tokens", "lm_head"]}
    tied["bart"] = ["model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head", "final_logits_bias"]
    return tied.get(family, ["model.rotary_emb", "lm_head"])


def _answers(model, tokenizer, memory=None):
    settings = {"top_k": 9} if model.config.is_encoder_decoder else {}
    with Unlimiformer(model, tokenizer, **settings) as wrapped:
        memory = wrapped.index(make_book(900)) if memory is None else memory
        plain = {"prompt": "w1 w2", "max_new_tokens": 6, "do_sample": False}
        greedy = wrapped.generate(memory, provenance=True, **plain)
        beams = wrapped.generate(memory, num_beams=3, **plain)
        return memory, greedy, beams


def _offloaded(how, folder, tmp_path, family, monkeypatch):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))
    if how == "disk":
        return load(folder, device_map={"": "disk"})[0]
    if how == "both":
        layers = LAYERS[family]
        names = (name for name, _ in load(folder)[0].named_parameters() if not name.startswith(layers))
        others = {name.rpartition(".")[0] for name in names}
        places = {**dict.fromkeys(others, "cpu"), **dict.fromkeys(_tied(family), "cpu"), layers: "disk"}
        return load(folder, device_map=places)[0]
    return accelerate.cpu_offload(load(folder)[0], execution_device=torch.device("cpu"))


@pytest.mark.parametrize("how", ["disk", "both", "cpu"])
@pytest.mark.parametrize("family", list(LAYERS))
def test_answers_are_the_same(family, how, tmp_path, tokenizer, monkeypatch):
    folder = _folder(tmp_path, family, tokenizer)
    memory, greedy, beams = _answers(load(folder)[0], tokenizer)
    model = _offloaded(how, folder, tmp_path, family, monkeypatch)
    assert any(parameter.device.type == "meta" for parameter in model.parameters())
    assert plain_device(model).type == "cpu"
    _, same, same_beams = _answers(model, tokenizer)
    assert torch.equal(same.sequences, greedy.sequences) and torch.equal(same_beams.sequences, beams.sequences)
    assert same.memory.recipe == memory.recipe  # weights are digested, wherever they are
    ours, theirs = (vars(each.provenance.passages(1)[0]) for each in (same, greedy))
    assert ours == pytest.approx(theirs, rel=1e-4)
    memory.save(tmp_path / "memory")
    assert torch.equal(_answers(model, tokenizer, Memory.load(tmp_path / "memory"))[1].sequences, greedy.sequences)
    for parameter in model.parameters():
        assert parameter.device.type in ("meta", "cpu")


def test_other_offloaded_weights_are_another_model(tmp_path, tokenizer, monkeypatch):
    folder = _folder(tmp_path, "t5", tokenizer)
    model = make("t5")
    model.encoder.block[0].layer[0].SelfAttention.q.weight.data += 0.01
    other = save(tmp_path / "other", model, tokenizer)
    memory = _answers(_offloaded("disk", folder, tmp_path, "t5", monkeypatch), tokenizer)[0]
    with pytest.raises(ValueError, match="another model"):
        _answers(_offloaded("disk", other, tmp_path, "t5", monkeypatch), tokenizer, memory)
