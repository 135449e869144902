"""Two processes that `torchrun` starts train what one process trains with the same global batch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
from conftest import make_book, make_tokenizer, save
from safetensors.torch import load_file
from tiny_models import WINDOW, make

from unlimiformer.training import TrainingSettings, train


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    words = make_book(1600).split()
    lines = [
        {"document": " ".join(words[n * 150 : n * 150 + 90 + 20 * (n % 3)]), "question": f"w{n}", "answer": f"w{n} w1"}
        for n in range(10)
    ]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = save(folder / "model", make("t5"), make_tokenizer())
    given = {"model": model, "data": str(data), "validation": str(data), "window": WINDOW, "top_k": 8, "steps": 4}
    return {
        **given,
        "method": "alternating",
        "learning_rate": 1e-2,
        "dropout": 0.0,
        "validate_every": 2,
        "new_tokens": 4,
    }


def _logged(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_match_one(settings, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    train(TrainingSettings(**settings, accumulation=2), one)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(asdict(TrainingSettings(**settings, accumulation=1))))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
    command = [*launch, "unlimiformer", "train", "--recipe", str(recipe), "-o", str(two)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("wrote ") == 1  # one process speaks for both
    ours, theirs = _logged(one), _logged(two)
    assert len(ours) == len(theirs)
    (loss,) = [row["train_loss"] for row in ours if "train_loss" in row]
    (shared,) = [row["train_loss"] for row in theirs if "train_loss" in row]
    assert shared == pytest.approx(loss, rel=1e-5)
    assert [row.get("eval_mean") for row in theirs] == pytest.approx([row.get("eval_mean") for row in ours])
    left, right = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    start = load_file(f"{settings['model']}/model.safetensors")
    for name, weight in left.items():
        assert torch.allclose(weight, right[name], atol=1e-4), name
    assert any((weight - start[name]).abs().max() > 1e-2 for name, weight in left.items())
    assert (two / "result.json").is_file() and (two / "unlimiformer.json").is_file()
