"""Trainings from their settings: what is learned, kept, resumed and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import make_book
from safetensors.torch import load_file
from tiny import WINDOW, make
from tiny_decoders import tiny_decoder

from unlimiformer import Unlimiformer
from unlimiformer.errors import UnlimiformerError
from unlimiformer.training import STRATEGIES, TrainingSettings, train


def _saved(path, model, tokenizer):
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    return _saved(tmp_path_factory.mktemp("t5"), make("t5"), tokenizer)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents of four windows; the answer is a word of the document that follows the question's."""
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    words = make_book(1200).split()
    lines = []
    for number in range(8):
        part = words[number * 120 : number * 120 + 120]
        lines.append({"document": " ".join(part), "question": part[50], "answer": part[51]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def _settings(folder, data, **others):
    given = {"model": folder, "data": data, "window": WINDOW, "top_k": 8, "accumulation": 1, "learning_rate": 1e-3}
    return TrainingSettings(**{**given, "steps": 3, "validate_every": 2, "new_tokens": 4, **others})


def _weights(path):
    return load_file(path / "model.safetensors")


@pytest.mark.parametrize("method", list(STRATEGIES))
@pytest.mark.parametrize("question", ["window", "decoder"])
def test_every_method_trains_and_can_be_used(folder, data, tmp_path, method, question, tokenizer):
    settings = _settings(folder, data, method=method, question=question, validation=data, validation_examples=2)
    figures = train(settings, tmp_path / "out")
    assert figures["steps"] == 3 and 0 <= figures["eval_rouge1"] <= 100
    before, after = load_file(f"{folder}/model.safetensors"), _weights(tmp_path / "out")
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any(name.startswith("encoder") for name in moved) and any(name.startswith("decoder") for name in moved)
    steps = [json.loads(line)["step"] for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == 3
    assert json.loads((tmp_path / "out" / "training.json").read_text())["method"] == method
    with Unlimiformer.from_pretrained(tmp_path / "out", window=WINDOW) as u:
        assert u.generate(make_book(100), max_new_tokens=3).token_ids.shape[0] > 1


def test_a_document_is_learned(folder, data, tmp_path):
    """Retrieval training fits eight answers that lie outside the first window."""
    train(_settings(folder, data, method="retrieval", steps=40, batch_size=4, learning_rate=3e-2), tmp_path / "out")
    losses = [json.loads(line).get("loss") for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [loss for loss in losses if loss is not None]
    assert losses[-1] < 0.5 * losses[0]


def test_a_killed_training_goes_on_with_the_same_result(folder, data, tmp_path):
    settings = _settings(folder, data, method="alternating", steps=8, batch_size=2)
    train(settings, tmp_path / "whole")
    script = (
        "import sys; from pathlib import Path; from unlimiformer.training import TrainingSettings, train;"
        "import json; settings = TrainingSettings(**json.loads(sys.argv[1])); train(settings, Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", script, settings.to_json(), str(tmp_path / "killed")]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not list((tmp_path / "killed").glob("checkpoint-*/trainer_state.json")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    train(settings, tmp_path / "killed")
    whole, killed = _weights(tmp_path / "whole"), _weights(tmp_path / "killed")
    for name, weight in whole.items():
        assert torch.allclose(weight, killed[name], atol=1e-6), name


def test_a_learned_gate_is_kept_and_used_again(folder, data, tmp_path):
    settings = _settings(folder, data, method="memorizing", layer=1, gated=True, learning_rate=0.1)
    train(settings, tmp_path / "out")
    gate = load_file(tmp_path / "out" / "memory_gate.safetensors")["memory_gate"]
    assert gate.shape == (4,) and not torch.allclose(gate, torch.full((4,), 3.0))
    again = _settings(str(tmp_path / "out"), data, method="memorizing", layer=1, gated=True, learning_rate=1e-9)
    train(again, tmp_path / "again")
    assert torch.allclose(gate, load_file(tmp_path / "again" / "memory_gate.safetensors")["memory_gate"], atol=1e-6)


def test_lora_trains_an_adapter_only(folder, data, tmp_path):
    train(_settings(folder, data, method="retrieval", lora=2), tmp_path / "out")
    kept = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert kept and all("lora" in name for name in kept)
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_decoder_only_model_trains_with_lora(data, tmp_path, tokenizer):
    folder = _saved(tmp_path / "llama", tiny_decoder("llama"), tokenizer)
    settings = TrainingSettings(
        model=folder,
        data=data,
        validation=data,
        method="retrieval",
        lora=2,
        steps=12,
        batch_size=4,
        accumulation=1,
        learning_rate=3e-2,
        window=64,
        top_k=32,
        validate_every=6,
    )
    figures = train(settings, tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    assert losses[-1] < losses[0] and figures["steps"] == 12
    assert all("lora" in name for name in load_file(tmp_path / "out" / "adapter_model.safetensors"))


def test_the_best_checkpoint_is_kept_and_training_stops_early(folder, data, tmp_path):
    settings = _settings(
        folder, data, validation=data, validation_examples=3, patience=1, validate_every=1, steps=50, learning_rate=1e-9
    )
    assert train(settings, tmp_path / "out")["steps"] == 2


def test_other_settings_and_foreign_folders_are_refused(folder, data, tmp_path):
    train(_settings(folder, data, steps=1), tmp_path / "out")
    with pytest.raises(UnlimiformerError, match="another training"):
        train(_settings(folder, data, steps=2), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(UnlimiformerError, match="holds no training"):
        train(_settings(folder, data), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_documents_over_the_limit_are_cut_and_it_is_said(folder, data, tmp_path):
    said = []
    train(_settings(folder, data, method="retrieval", source_limit=50, steps=1), tmp_path / "out", say=said.append)
    assert "8 documents are longer than 50 tokens and were cut to that length" in said


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "magic"}, "method is 'magic'; expected one of: standard"),
        ({"layer": 1}, "layer and gated are for method 'memorizing'"),
        ({"patience": 2}, "without validation data"),
        ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected more than 0"),
        ({"question": "behind"}, "question is 'behind'; expected one of: window, decoder"),
    ],
)
def test_bad_settings_are_named(folder, data, changed, message):
    with pytest.raises(UnlimiformerError, match=message):
        _settings(folder, data, **changed)
