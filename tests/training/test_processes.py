"""Two processes started by `torchrun` train what one process trains with the same global batch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
from conftest import make_book
from training_helpers import load_weights, read_metrics, write_jsonl

from unlimiformer.training import train


def test_two_processes_match_one(make_settings, tmp_path):
    """The sum of two gradients does not depend on their order, so the runs differ by almost nothing."""
    words = make_book(1600).split()
    documents = [" ".join(words[n * 150 : n * 150 + 90 + 20 * (n % 3)]) for n in range(10)]
    rows = [{"document": document, "question": f"w{n}", "answer": f"w{n} w1"} for n, document in enumerate(documents)]
    data = write_jsonl(tmp_path / "data.jsonl", rows)
    changes = {"method": "alternating", "steps": 4, "learning_rate": 1e-2, "dropout": 0.0}
    settings = make_settings(data=data, validation=data, validation_examples=5, **changes)
    one, two = tmp_path / "one", tmp_path / "two"
    train(replace(settings, accumulation=2), one)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(asdict(settings)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [*launcher, "-m", "unlimiformer", "train", "--recipe", str(recipe), "-o", str(two)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("wrote ") == 1, "only the main process logs"
    metrics_one, metrics_two = read_metrics(one), read_metrics(two)
    assert len(metrics_one) == len(metrics_two)
    (loss_one,) = [row["train_loss"] for row in metrics_one if "train_loss" in row]
    (loss_two,) = [row["train_loss"] for row in metrics_two if "train_loss" in row]
    assert loss_two == pytest.approx(loss_one, rel=1e-5)
    scores_one = [row.get("eval_mean") for row in metrics_one]
    assert [row.get("eval_mean") for row in metrics_two] == pytest.approx(scores_one)
    weights_one, weights_two, start = load_weights(one), load_weights(two), load_weights(settings.model)
    for name, weight in weights_one.items():
        assert torch.allclose(weight, weights_two[name], atol=1e-4), name
    assert any((weight - start[name]).abs().max() > 1e-2 for name, weight in weights_one.items())
    assert (two / "result.json").is_file() and (two / "unlimiformer.json").is_file()
