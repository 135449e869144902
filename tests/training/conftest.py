"""Fixtures of the training tests: a tiny model on disk, a small dataset, and short training settings.

Random weights and random orders come from one seed. To repeat the tests with another one, set the environment variable
UNLIMIFORMER_TEST_SEED.
"""

from __future__ import annotations

import os

import pytest
from conftest import make_book, save
from tiny_models import WINDOW, make
from training_helpers import write_jsonl

from unlimiformer.training import TrainingSettings


@pytest.fixture(scope="session")
def seed():
    return int(os.environ.get("UNLIMIFORMER_TEST_SEED", "0"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, tokenizer, seed):
    return save(tmp_path_factory.mktemp("t5"), make("t5", seed), tokenizer)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Eight documents of four windows; the answer is the word that follows the question's word in the document."""
    words = make_book(1200).split()
    parts = [words[start : start + 120] for start in range(0, 960, 120)]
    return write_jsonl(
        tmp_path_factory.mktemp("data") / "train.jsonl",
        [{"document": " ".join(part), "question": part[50], "answer": part[51]} for part in parts],
    )


@pytest.fixture(scope="session")
def make_settings(model_folder, data, seed):
    """Build settings of a training of three steps; arguments change or add settings."""
    defaults = {"model": model_folder, "data": data, "window": WINDOW, "top_k": 8, "accumulation": 1, "seed": seed}
    defaults |= {"learning_rate": 1e-3, "steps": 3, "validate_every": 2, "new_tokens": 4}
    return lambda **changes: TrainingSettings(**{**defaults, **changes})
