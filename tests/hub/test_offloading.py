"""Models that accelerate spreads over CPU and disk give the answers that they give in one piece."""

from __future__ import annotations

import accelerate
import pytest
import torch
from conftest import make_book, save
from tiny_causal_models import tiny_decoder
from tiny_models import make

from unlimiformer import Memory, Unlimiformer
from unlimiformer.adapters.base import input_device
from unlimiformer.hub.loading import load

LAYERS = {"t5": "decoder.block", "bart": "model.decoder.layers", "llama": "model.layers"}
TIED = {
    "t5": ["encoder.embed_tokens", "decoder.embed_tokens", "lm_head"],
    "bart": ["model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head", "final_logits_bias"],
    "llama": ["model.rotary_emb", "lm_head"],
}  # modules that share their weights with others, and buffers


def _save_model(folder, family, tokenizer):
    model = tiny_decoder(family) if family == "llama" else make(family)
    return save(folder, model, tokenizer)


def _generate(model, tokenizer, memory=None):
    """The memory of a book, and what is generated from it greedily and with beams."""
    settings = {"top_k": 9} if model.config.is_encoder_decoder else {}
    generation = {"prompt": "w1 w2", "max_new_tokens": 6, "do_sample": False}
    with Unlimiformer(model, tokenizer, **settings) as u:
        memory = u.index(make_book(900)) if memory is None else memory
        greedy = u.generate(memory, provenance=True, **generation)
        beams = u.generate(memory, num_beams=3, **generation)
        return memory, greedy, beams


def _load_offloaded(target, folder, family):
    """Load a model with all weights or the decoder's layers on disk, or all in the RAM of accelerate's hooks."""
    if target == "disk":
        return load(folder, device_map={"": "disk"})[0]
    if target == "cpu and disk":
        layers = LAYERS[family]
        parameters = (name for name, _ in load(folder)[0].named_parameters() if not name.startswith(layers))
        on_cpu = {name.rpartition(".")[0] for name in parameters} | set(TIED[family])
        return load(folder, device_map={**dict.fromkeys(on_cpu, "cpu"), layers: "disk"})[0]
    return accelerate.cpu_offload(load(folder)[0], execution_device=torch.device("cpu"))


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("target", ["disk", "cpu and disk", "cpu"])
@pytest.mark.parametrize("family", list(LAYERS))
def test_an_offloaded_model_gives_the_same_answers(family, target, tmp_path, tokenizer):
    folder = _save_model(tmp_path / "model", family, tokenizer)
    memory, greedy, beams = _generate(load(folder)[0], tokenizer)
    model = _load_offloaded(target, folder, family)
    assert any(parameter.device.type == "meta" for parameter in model.parameters())
    assert input_device(model).type == "cpu"
    _, same_greedy, same_beams = _generate(model, tokenizer)
    assert torch.equal(same_greedy.sequences, greedy.sequences) and torch.equal(same_beams.sequences, beams.sequences)
    assert same_greedy.memory.spec == memory.spec  # the digest covers offloaded weights too
    passage, expected = (vars(out.provenance.passages(1)[0]) for out in (same_greedy, greedy))
    assert passage == pytest.approx(expected, rel=1e-4)
    memory.save(tmp_path / "memory")
    _, from_disk, _ = _generate(model, tokenizer, Memory.load(tmp_path / "memory"))
    assert torch.equal(from_disk.sequences, greedy.sequences)
    for parameter in model.parameters():
        assert parameter.device.type in ("meta", "cpu")


def test_other_offloaded_weights_are_another_model(tmp_path, tokenizer):
    folder = _save_model(tmp_path / "model", "t5", tokenizer)
    model = make("t5")
    model.encoder.block[0].layer[0].SelfAttention.q.weight.data += 0.01
    other_folder = save(tmp_path / "other", model, tokenizer)
    memory, _, _ = _generate(_load_offloaded("disk", folder, "t5"), tokenizer)
    with pytest.raises(ValueError, match="another model"):
        _generate(_load_offloaded("disk", other_folder, "t5"), tokenizer, memory)
