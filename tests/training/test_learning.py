"""Tests that train a model and check what it has learned.

They must pass with every seed and on every processor, so the tasks are easy and the learning rates low: rounding and
random weights change the final loss by far less than its distance from the bound. UNLIMIFORMER_TEST_SEED repeats them
with another seed; the final values are recorded as properties of the tests (see pytest's --junitxml).
"""

from __future__ import annotations

import math

import pytest
import torch
from conftest import make_book, save
from safetensors.torch import load_file
from tiny_causal_models import tiny_decoder
from tiny_models import VOCABULARY, make
from training_helpers import read_metrics, write_jsonl

from unlimiformer.training import TrainingSettings, train


@pytest.fixture(scope="module")
def hidden_topics(tmp_path_factory):
    """Four documents with the same first window; only the word that fills the rest decides the answer."""
    beginning = make_book(30).split()  # with <s> and </s> it fills a window
    rows = [{"document": " ".join(beginning + [f"w{50 + n}"] * 40), "answer": f"w{n}"} for n in range(4)]
    return write_jsonl(tmp_path_factory.mktemp("topics") / "topics.jsonl", rows)


def test_retrieval_learns_what_is_beyond_the_window(
    hidden_topics, make_settings, tmp_path, tokenizer, seed, record_property
):
    """A model that sees the first window alone cannot do better than guess one of four answers; retrieval learns all.

    Each batch holds all four documents, so a loss below that of guessing is impossible without the hidden words,
    for any weights. Labels are <s>, the answer and </s>; the first and the last are always the same.
    """
    folder = save(tmp_path / "bart", make("bart", seed), tokenizer)
    guessing = math.log(4) / 3
    ratios = {}
    for method in ("standard", "retrieval"):
        changes = {"steps": 40, "batch_size": 4, "learning_rate": 3e-3, "schedule": "constant", "dropout": 0.0}
        train(make_settings(model=folder, data=hidden_topics, method=method, **changes), tmp_path / method)
        losses = [row["loss"] for row in read_metrics(tmp_path / method) if "loss" in row]
        ratios[method] = losses[-1] / guessing
        record_property(f"{method}: last loss / loss of guessing", ratios[method])
    assert 0.99 < ratios["standard"] < 1.5
    assert ratios["retrieval"] < 0.25


@pytest.mark.parametrize("method", ["retrieval", "standard"])
def test_causal_model_learns_with_lora(method, tmp_path, tokenizer, seed, record_property):
    """Every document has the same answer: an adapter learns it in a few steps, from above the loss of guessing."""
    folder = save(tmp_path / "llama", _randomize(tiny_decoder("llama"), seed), tokenizer)
    words = make_book(960).split()
    parts = [words[start : start + 120] for start in range(0, 960, 120)]
    rows = [{"document": " ".join(part), "question": part[50], "answer": "w7"} for part in parts]
    path = write_jsonl(tmp_path / "same.jsonl", rows)
    settings = TrainingSettings(
        model=folder,
        data=path,
        validation=path,
        method=method,
        lora=2,
        steps=12,
        batch_size=4,
        accumulation=1,
        learning_rate=3e-2,
        window=64,
        top_k=32,
        validate_every=6,
        seed=seed,
    )
    metrics = train(settings, tmp_path / "out")
    losses = [row["eval_loss"] for row in read_metrics(tmp_path / "out") if "eval_loss" in row]
    guessing = math.log(VOCABULARY)
    record_property("first validation loss / loss of guessing", losses[0] / guessing)
    record_property("last validation loss / loss of guessing", losses[-1] / guessing)
    assert metrics["steps"] == 12
    assert losses[-1] < losses[0]
    assert losses[-1] < 0.5 * guessing
    assert all("lora" in name for name in load_file(tmp_path / "out" / "adapter_model.safetensors"))


def _randomize(model, seed):
    """Draw the weights with this seed; `tiny_decoder` has a fixed one."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model


def test_gate_is_learned_saved_and_loaded(make_settings, tmp_path, record_property):
    """Adam's first step moves every parameter that has a gradient by the learning rate; gates start at 3."""
    changes = {"method": "memorizing", "layer": 1, "gated": True, "steps": 1}
    train(make_settings(**changes, learning_rate=0.1), tmp_path / "out")
    gate = load_file(tmp_path / "out" / "memory_gate.safetensors")["memory_gate.1"]
    record_property("smallest change of a head's gate / learning rate", float((gate - 3).abs().min()) / 0.1)
    assert gate.shape == (4,) and bool(((gate - 3).abs() > 0.05).all())
    train(make_settings(**changes, model=str(tmp_path / "out"), learning_rate=1e-9), tmp_path / "again")
    loaded_gate = load_file(tmp_path / "again" / "memory_gate.safetensors")["memory_gate.1"]
    assert torch.allclose(gate, loaded_gate, atol=1e-6)
