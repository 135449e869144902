"""Helpers of the training tests: datasets as JSONL files, and the metrics and weights of a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write one JSON object on each line, and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the logged rows of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def load_weights(folder: Path | str) -> dict[str, Tensor]:
    """Return the weights of a saved model by name."""
    return load_file(Path(folder) / "model.safetensors")


def assert_same_weights(run: Path, other: Path) -> None:
    """Fail unless two runs have trained the same weights."""
    other_weights = load_weights(other)
    for name, weight in load_weights(run).items():
        assert torch.allclose(weight, other_weights[name], atol=1e-6), name
