"""Training of the decoder alone, from memories on disk."""

from __future__ import annotations

import pytest
import torch
from training_helpers import assert_same_weights, load_weights, read_metrics

from unlimiformer.errors import InputError
from unlimiformer.memory.indexer import Indexer
from unlimiformer.training import STRATEGIES, run, train
from unlimiformer.training.frozen_encoder import FrozenEncoder


@pytest.mark.parametrize("question", ["window", "decoder"])
@pytest.mark.parametrize("method", [method for method in STRATEGIES if method != "reread"])
def test_memories_train_as_encoding_every_time_does(
    make_settings, model_folder, tmp_path, monkeypatch, method, question
):
    """With plain gradient descent, equal weights mean equal gradients."""
    changes = {"freeze_encoder": True, "dropout": 0.0, "learning_rate": 0.1, "trainer": {"optim": "sgd"}}
    settings = make_settings(method=method, question=question, batch_size=2, **changes)
    train(settings, tmp_path / "memories")

    def freeze_only(settings, wrapped, args):
        FrozenEncoder(wrapped, tmp_path / "unused")

    monkeypatch.setattr(run, "_freeze_encoder", freeze_only)
    train(settings, tmp_path / "encoded")
    assert_same_weights(tmp_path / "memories", tmp_path / "encoded")
    losses = [read_metrics(tmp_path / name)[-1]["train_loss"] for name in ("memories", "encoded")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    before, after = load_weights(model_folder), load_weights(tmp_path / "memories")
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert "decoder" in changed and not changed & {"encoder", "shared"}


def test_every_document_is_encoded_once_and_shared_by_runs(make_settings, data, tmp_path, monkeypatch):
    index_inputs, encoded = Indexer.index_inputs, []

    def count(self, inputs, *arguments, **options):
        encoded.append(len(inputs))
        return index_inputs(self, inputs, *arguments, **options)

    monkeypatch.setattr(Indexer, "index_inputs", count)
    changes = {"question": "decoder", "freeze_encoder": True, "memories": str(tmp_path / "shared"), "steps": None}
    settings = make_settings(method="retrieval", epochs=3, validate_every=None, validation=data, **changes)
    metrics = train(settings, tmp_path / "one")
    assert sum(encoded) == 8 and 0 <= metrics["eval_f1"] <= 100
    train(make_settings(method="sled", epochs=1, validate_every=None, **changes), tmp_path / "two")
    assert sum(encoded) == 8, "the second run finds all memories"


def test_frozen_encoder_is_not_combined_with_distractors(make_settings):
    with pytest.raises(InputError, match="freeze_encoder and distractors were given"):
        make_settings(method="retrieval", freeze_encoder=True, distractors=5)
    with pytest.raises(InputError, match="memories was given; it is for training with freeze_encoder"):
        make_settings(memories="folder")
