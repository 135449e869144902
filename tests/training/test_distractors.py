"""Distractors: which states of earlier documents are shown next to a document, and when."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from unlimiformer.engines.seq2seq import attention, hooks
from unlimiformer.training import train
from unlimiformer.training.distractors import Distractors


def test_training_shows_the_latest_documents_and_validation_none(make_settings, data, tmp_path, monkeypatch):
    """Distractors are in the store after the document's own tokens, up to the limit."""
    in_training, in_validation = [], []
    original = attention.attend

    def attend(view, queries, memory, *args):
        distractor_rows = memory.store.rows - len(memory.token_ids)
        if torch.is_grad_enabled():
            in_training.append((distractor_rows, memory.windows))
        else:
            in_validation.append(distractor_rows)
        return original(view, queries, memory, *args)

    monkeypatch.setattr(hooks, "attend", attend)
    changes = {"validation": data, "steps": 4, "validate_every": 4, "distractors": 150, "method": "retrieval"}
    train(make_settings(**changes), tmp_path / "out")
    rows = [rows for rows, _ in in_training[::2]]  # two layers
    assert rows[0] == 0 and 100 < rows[1] < 150 and rows[2:] == [150, 150]
    assert min(windows for _, windows in in_training) > 1 and set(in_validation) == {0}
    saved = load_file(tmp_path / "out" / "checkpoint-4" / "distractors-0.safetensors")
    assert saved["states0"].shape == (len(saved["ids0"]), 32)


def test_a_document_is_no_distractor_of_itself():
    distractors, documents = Distractors(5), [torch.tensor([n, n]) for n in range(4)]
    assert distractors.other_states(documents[0]) is None
    for index in (0, 1, 2, 3, 2):
        distractors.record(documents[index], torch.full((2, 1), float(index), requires_grad=True))
        distractors.on_step_end(None, None, None)
    assert distractors.other_states(documents[2]).flatten().tolist() == [3, 3, 1, 1, 0], "newest first"
    assert distractors.other_states(documents[0]).flatten().tolist() == [2, 2, 3, 3, 1]
    assert distractors.other_states(torch.tensor([9])).flatten().tolist() == [2, 2, 3, 3, 1]
    assert not distractors.other_states(documents[0]).requires_grad
    distractors.restore(None, torch.device("cpu"))
    assert distractors.other_states(documents[0]) is None


def test_a_document_of_two_accumulated_batches_is_stored_once():
    distractors, document = Distractors(100), torch.tensor([1, 2])
    for _ in range(2):
        distractors.record(document, torch.ones(2, 1))
    distractors.on_step_end(None, None, None)
    assert distractors.other_states(torch.tensor([9])).shape == (2, 1)
