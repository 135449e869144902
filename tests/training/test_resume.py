"""Stopped runs resume with the result of an uninterrupted one; folders of other runs are refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import make_book
from training_helpers import assert_same_weights, load_weights, read_metrics, write_jsonl

from unlimiformer.errors import InputError, UnlimiformerError
from unlimiformer.training import UnlimiformerTrainer, train
from unlimiformer.training.validation import Validation


def test_resume_after_kill(make_settings, tmp_path):
    settings = make_settings(method="alternating", steps=8, batch_size=2)
    train(settings, tmp_path / "whole")
    script = (
        "import sys; from pathlib import Path; from unlimiformer.training import TrainingSettings, train;"
        "import json; settings = TrainingSettings(**json.loads(sys.argv[1])); train(settings, Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", script, settings.to_json(), str(tmp_path / "killed")]
    threads = str(torch.get_num_threads())  # another number may round differently
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": threads})
    while not list((tmp_path / "killed").glob("checkpoint-*/trainer_state.json")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    train(settings, tmp_path / "killed")
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    steps = [row["step"] for row in read_metrics(tmp_path / "killed")]
    expected_steps = [row["step"] for row in read_metrics(tmp_path / "whole")]
    assert steps == sorted(steps) and steps.count(8) == expected_steps.count(8)


@pytest.mark.parametrize("changes", [{"method": "random"}, {"method": "retrieval", "distractors": 100}])
def test_resume_after_interrupt(make_settings, tmp_path, monkeypatch, changes):
    """Ctrl-C in the middle of a step, between two checkpoints."""
    settings = make_settings(steps=6, validate_every=100, accumulation=2, **changes)
    train(settings, tmp_path / "whole")
    calls, original = [], UnlimiformerTrainer.compute_loss

    def interrupt(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(UnlimiformerTrainer, "compute_loss", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped")
    assert [path.name for path in (tmp_path / "stopped").glob("checkpoint-*")] == ["checkpoint-3"]
    train(settings, tmp_path / "stopped")
    assert_same_weights(tmp_path / "whole", tmp_path / "stopped")


def test_resume_in_the_second_epoch_of_grouped_questions(make_settings, tmp_path):
    """The order of the batches and the distractors are those of the uninterrupted run."""
    words = make_book(600).split()
    questions = [{"question": f"w{q}", "answer": f"w{q + 1}"} for q in range(4)]
    rows = [{"document": " ".join(words[n * 60 : n * 60 + 60]), "questions": questions} for n in range(4)]
    changes = {"question": "decoder", "form": "{question}", "batch_size": 4, "distractors": 100, "method": "retrieval"}
    changes |= {"steps": 8, "validate_every": 3}
    settings = make_settings(data=write_jsonl(tmp_path / "d.jsonl", rows), **changes)
    train(settings, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    (tmp_path / "again" / "result.json").unlink()
    shutil.rmtree(tmp_path / "again" / "checkpoint-8")
    (tmp_path / "again" / "model.safetensors").unlink()
    messages = []
    train(settings, tmp_path / "again", log=messages.append)
    assert any(line.endswith("checkpoint-6") for line in messages)
    assert_same_weights(tmp_path / "whole", tmp_path / "again")


def test_incomplete_checkpoint_is_ignored(make_settings, tmp_path):
    settings = make_settings(steps=4)
    train(settings, tmp_path / "out")
    (tmp_path / "out" / "result.json").unlink()
    (tmp_path / "out" / "checkpoint-4" / "trainer_state.json").unlink()
    messages = []
    train(settings, tmp_path / "out", log=messages.append)
    assert any(line.endswith("checkpoint-2") for line in messages)


def test_finished_run_is_not_trained_further(make_settings, tmp_path):
    settings = make_settings()
    metrics = train(settings, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert train(settings, tmp_path / "out") == metrics
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_failed_start_leaves_the_folder_usable(make_settings, tmp_path):
    with pytest.raises(UnlimiformerError, match="no file"):
        train(make_settings(data="quesions.jsonl"), tmp_path / "out")
    assert train(make_settings(steps=1), tmp_path / "out")["steps"] == 1


def test_best_checkpoint_is_kept(make_settings, data, tmp_path, monkeypatch):
    scores = iter([{"f1": 1.0}, {"f1": 3.0}, {"f1": 2.0}, {"f1": 3.0}])
    monkeypatch.setattr(Validation, "score", lambda self, tokenizer, predictions: next(scores))
    train(make_settings(validation=data, validation_examples=1, validate_every=1), tmp_path / "out")
    assert_same_weights(tmp_path / "out", tmp_path / "out" / "checkpoint-2")
    last = load_weights(tmp_path / "out" / "checkpoint-3")
    assert any(not torch.equal(weight, last[name]) for name, weight in load_weights(tmp_path / "out").items())


def test_early_stopping(make_settings, data, tmp_path):
    changes = {"patience": 1, "validate_every": 1, "steps": 50, "learning_rate": 1e-9}
    settings = make_settings(validation=data, validation_examples=3, **changes)
    assert train(settings, tmp_path / "out")["steps"] == 2


def test_folder_of_another_run_is_refused(make_settings, tmp_path):
    train(make_settings(steps=1), tmp_path / "out")
    with pytest.raises(InputError, match="another training"):
        train(make_settings(steps=2), tmp_path / "out")


def test_folder_with_other_files_is_refused(make_settings, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="holds no training"):
        train(make_settings(), tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]
