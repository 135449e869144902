"""Trainings from their settings: what is learned, kept, resumed and refused."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import make_book, save
from safetensors.torch import load_file
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make
from transformers import Seq2SeqTrainingArguments

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq import attention as retrieval
from unlimiformer.engines.seq2seq import hooks as install
from unlimiformer.errors import UnlimiformerError
from unlimiformer.hub.loading import load
from unlimiformer.qa import QuestionFormat
from unlimiformer.training import (
    STRATEGIES,
    LengthLimits,
    Seq2SeqDataset,
    TrainingSettings,
    UnlimiformerTrainer,
    examples,
    run,
    train,
)
from unlimiformer.training.distractors import Distractors


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    return save(tmp_path_factory.mktemp("t5"), make("t5"), tokenizer)


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
    with Unlimiformer.from_pretrained(tmp_path / "out") as u:
        assert u.window == WINDOW and QuestionFormat.of(tmp_path / "out") == QuestionFormat(question)
        tested = STRATEGIES[method](8)
        tested.prepare(u.model, u.hooks.attentions)
        assert u.hooks.policies == [tested.eval_policy(layer) for layer in range(2)]
        assert u.generate(make_book(100), max_new_tokens=3).token_ids.shape[0] > 1


def _losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_what_lies_beyond_the_window_is_learned(folder, tmp_path):
    """All documents begin alike, so that only what the first window does not show tells their answers."""
    words = make_book(60).split()
    lines = [{"document": " ".join(words + [f"w{50 + n}"] * 30), "answer": f"w{n}"} for n in range(4)]
    path = tmp_path / "alike.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    last = {}
    for method in ("standard", "retrieval"):
        changes = {"steps": 90, "batch_size": 4, "learning_rate": 1e-2, "schedule": "constant", "dropout": 0.0}
        settings = _settings(folder, str(path), method=method, **changes)
        train(settings, tmp_path / method)
        last[method] = _losses(tmp_path / method)[-1]
    guessing = math.log(4) / 3  # one of four, between two tokens that are always the same
    assert last["standard"] > 0.99 * guessing
    assert last["retrieval"] < 0.5 * guessing


def test_accumulated_batches_are_averaged(folder, data, tmp_path):
    """Two batches of two are as one of four; dropout makes a small difference."""
    for name, batch_size, accumulation in (("one", 4, 1), ("two", 2, 2)):
        changes = {"batch_size": batch_size, "accumulation": accumulation, "steps": 2, "weight_decay": 0.0}
        train(_settings(folder, data, method="retrieval", learning_rate=1e-5, **changes), tmp_path / name)
    figures = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]) for name in ("one", "two")]
    assert figures[0]["train_loss"] == pytest.approx(figures[1]["train_loss"], rel=0.03)


def test_turns_are_counted_by_batch(folder, data, tmp_path, monkeypatch):
    seen = []
    original = STRATEGIES["alternating"].train_policy
    monkeypatch.setattr(
        STRATEGIES["alternating"],
        "train_policy",
        lambda self, layer, step: (seen.append(step), original(self, layer, step))[1],
    )
    train(_settings(folder, data, method="alternating", accumulation=2, steps=3), tmp_path / "out")
    assert seen == [step for step in range(6) for _ in range(2)]  # two layers


def test_the_wrapper_sees_afterwards_what_it_saw_before(folder, data, tmp_path):
    u = Unlimiformer.from_pretrained(folder, window=WINDOW, top_k=8)
    own = u.hooks.policies
    features = Seq2SeqDataset(examples(data), u.tokenizer, QuestionFormat(), LengthLimits(None, None), WINDOW)
    args = Seq2SeqTrainingArguments(output_dir=str(tmp_path), max_steps=1, report_to=[], save_strategy="no")
    UnlimiformerTrainer(u, STRATEGIES["random"](8), args, train_dataset=features).train()
    assert u.hooks.policies is own


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
    _same_weights(tmp_path / "whole", tmp_path / "killed")
    steps = [json.loads(line)["step"] for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps.count(8) == [
        json.loads(line)["step"] for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    ].count(8)


def _same_weights(one, other):
    other = _weights(other)
    for name, weight in _weights(one).items():
        assert torch.allclose(weight, other[name], atol=1e-6), name


@pytest.mark.parametrize("others", [{"method": "random"}, {"method": "retrieval", "distractors": 100}])
def test_an_interrupted_training_goes_on_with_the_same_result(folder, data, tmp_path, monkeypatch, others):
    """Ctrl-C in the middle of a step, between two checkpoints."""
    settings = _settings(folder, data, steps=6, validate_every=100, accumulation=2, **others)
    train(settings, tmp_path / "whole")
    calls, original = [], UnlimiformerTrainer.compute_loss

    def interrupted(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(UnlimiformerTrainer, "compute_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped")
    assert [path.name for path in (tmp_path / "stopped").glob("checkpoint-*")] == ["checkpoint-3"]
    train(settings, tmp_path / "stopped")
    _same_weights(tmp_path / "whole", tmp_path / "stopped")


def test_distractors_are_what_was_read_last_and_are_seen_in_training_alone(folder, data, tmp_path, monkeypatch):
    """They stand behind each document, without gradients; validation has the document alone."""
    seen, validated = [], []
    original = retrieval.attend

    def attend(view, queries, memory, *args):
        if torch.is_grad_enabled():
            seen.append((memory.store.rows - len(memory.token_ids), memory.windows))
        else:
            validated.append(memory.store.rows - len(memory.token_ids))
        return original(view, queries, memory, *args)

    monkeypatch.setattr(install, "attend", attend)
    changes = {"validation": data, "steps": 4, "validate_every": 4, "distractors": 150, "method": "retrieval"}
    train(_settings(folder, data, **changes), tmp_path / "out")
    rows = [each for each, _ in seen[::2]]  # two layers
    assert rows[0] == 0 and 100 < rows[1] < 150 and rows[2:] == [150, 150]
    assert min(windows for _, windows in seen) > 1 and set(validated) == {0}
    kept = load_file(tmp_path / "out" / "checkpoint-4" / "distractors-0.safetensors")
    assert kept["states0"].shape == (len(kept["ids0"]), 32)


def test_a_document_does_not_stand_beside_itself():
    bank, documents = Distractors(5), [torch.tensor([n, n]) for n in range(4)]
    assert bank.others(documents[0]) is None
    for number in (0, 1, 2, 3, 2):
        bank.note([(documents[number], torch.full((2, 1), float(number), requires_grad=True))])
        bank.on_step_end(None, None, None)
    assert bank.others(documents[2]).flatten().tolist() == [3, 3, 1, 1, 0], "newest first"
    assert bank.others(documents[0]).flatten().tolist() == [2, 2, 3, 3, 1]
    assert bank.others(torch.tensor([9])).flatten().tolist() == [2, 2, 3, 3, 1]
    assert not bank.others(documents[0]).requires_grad
    bank.begin(None, torch.device("cpu"))
    assert bank.others(documents[0]) is None


def test_questions_of_a_document_go_on_with_the_same_result(folder, tmp_path):
    """Killed in the second epoch: the order, and what stands beside each document, are those of the whole training."""
    path, words = tmp_path / "d.jsonl", make_book(600).split()
    asked = [{"question": f"w{q}", "answer": f"w{q + 1}"} for q in range(4)]
    lines = [{"document": " ".join(words[n * 60 : n * 60 + 60]), "questions": asked} for n in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    changes = {"question": "decoder", "form": "{question}", "batch_size": 4, "distractors": 100, "method": "retrieval"}
    settings = _settings(folder, str(path), **{**changes, "steps": 8, "validate_every": 3})
    train(settings, tmp_path / "whole")
    train(settings, tmp_path / "again")
    for name in ("result.json", "checkpoint-8"):
        left = tmp_path / "again" / name
        left.unlink() if left.is_file() else shutil.rmtree(left)
    said = []
    train(settings, tmp_path / "again", log=said.append)
    assert any(line.endswith("checkpoint-6") for line in said)
    _same_weights(tmp_path / "whole", tmp_path / "again")


def test_a_half_written_checkpoint_is_no_checkpoint(folder, data, tmp_path):
    settings = _settings(folder, data, steps=4)
    train(settings, tmp_path / "out")
    (tmp_path / "out" / "result.json").unlink()
    (tmp_path / "out" / "checkpoint-4" / "trainer_state.json").unlink()
    said = []
    train(settings, tmp_path / "out", log=said.append)
    assert any(line.endswith("checkpoint-2") for line in said)


def test_a_finished_training_is_not_trained_further(folder, data, tmp_path):
    settings = _settings(folder, data, steps=3)
    first = train(settings, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert train(settings, tmp_path / "out") == first
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_a_mistake_leaves_the_folder_free(folder, data, tmp_path):
    with pytest.raises(UnlimiformerError, match="no file"):
        train(_settings(folder, "quesions.jsonl"), tmp_path / "out")
    assert train(_settings(folder, data, steps=1), tmp_path / "out")["steps"] == 1


def test_a_learned_gate_is_kept_and_used_again(folder, data, tmp_path):
    settings = _settings(folder, data, method="memorizing", layer=1, gated=True, learning_rate=0.1)
    train(settings, tmp_path / "out")
    gate = load_file(tmp_path / "out" / "memory_gate.safetensors")["memory_gate.1"]
    assert gate.shape == (4,) and not torch.allclose(gate, torch.full((4,), 3.0))
    again = _settings(str(tmp_path / "out"), data, method="memorizing", layer=1, gated=True, learning_rate=1e-9)
    train(again, tmp_path / "again")
    assert torch.allclose(gate, load_file(tmp_path / "again" / "memory_gate.safetensors")["memory_gate.1"], atol=1e-6)


def test_lora_trains_an_adapter_only(folder, data, tmp_path):
    train(_settings(folder, data, method="retrieval", lora=2), tmp_path / "out")
    kept = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert kept and all("lora" in name for name in kept)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    with Unlimiformer.from_pretrained(tmp_path / "out", window=WINDOW) as u:
        u.generate(make_book(100), max_new_tokens=3)
        trained = u.model.state_dict()
    base = load_file(f"{folder}/model.safetensors")
    name = "decoder.block.0.layer.1.EncDecAttention.q.weight"
    assert not torch.allclose(trained[name], base[name], atol=1e-7)


def test_a_decoder_only_model_trains_with_lora(data, tmp_path, tokenizer):
    folder = save(tmp_path / "llama", tiny_decoder("llama"), tokenizer)
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


def test_the_best_checkpoint_is_kept(folder, data, tmp_path, monkeypatch):
    scores = iter([{"mean": 1.0}, {"mean": 3.0}, {"mean": 2.0}, {"mean": 3.0}])
    monkeypatch.setattr(run, "_scores", lambda tokenizer, predicted: next(scores))
    settings = _settings(folder, data, validation=data, validation_examples=1, validate_every=1, steps=3)
    train(settings, tmp_path / "out")
    _same_weights(tmp_path / "out", tmp_path / "out" / "checkpoint-2")
    last = _weights(tmp_path / "out" / "checkpoint-3")
    assert any(not torch.equal(weight, last[name]) for name, weight in _weights(tmp_path / "out").items())


def test_training_stops_early(folder, data, tmp_path):
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
    train(_settings(folder, data, method="retrieval", source_limit=50, steps=1), tmp_path / "out", log=said.append)
    assert "8 documents are longer than 50 tokens and were cut to that length" in said


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "magic"}, "method is 'magic'; expected one of: standard"),
        ({"layer": 1}, "layer and gated are for method 'memorizing'"),
        ({"patience": 2}, "without validation data"),
        ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected more than 0"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'; expected a number"),
        ({"steps": "many"}, "steps is 'many'; expected a whole number"),
        ({"form": "Q: {q}"}, "the form of questions is 'Q: {q}'"),
        ({"method": "memorizing", "gated": True, "lora": 4}, "does not keep the gate"),
        ({"question": "behind"}, "question is 'behind'; expected one of: window, decoder"),
    ],
)
def test_bad_settings_are_named(folder, data, changed, message):
    with pytest.raises(UnlimiformerError, match=message):
        _settings(folder, data, **changed)


def test_dropout_is_what_was_asked_for(folder, data):
    """In every module that drops, of attention weights as well."""
    for rate, expected in ((None, 0.1), (0.0, 0.0), (0.3, 0.3)):
        wrapped = run._wrapped(_settings(folder, data, dropout=rate))
        modules = list(wrapped.model.modules())
        rates = {module.p for module in modules if isinstance(module, torch.nn.Dropout)}
        rates |= {module.dropout for module in modules if isinstance(getattr(module, "dropout", None), float)}
        assert rates == {expected}
        wrapped.remove()
    with pytest.raises(UnlimiformerError, match="would draw little else"):
        _settings(folder, data, distractors=5, method="random")
    with pytest.raises(UnlimiformerError, match=r"dropout is 1.5; expected 0 or more"):
        _settings(folder, data, dropout=1.5)


@pytest.mark.parametrize("family", ["bart", "t5gemma", "led"])
def test_dropout_reaches_inner_configs(family, tmp_path, tokenizer):
    model, _ = load(save(tmp_path, make(family), tokenizer), dropout=0.37)
    rates = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    named = ("dropout", "attention_dropout", "activation_dropout")
    rates += [rate for m in model.modules() for name in named if isinstance(rate := getattr(m, name, None), float)]
    assert rates and set(rates) == {0.37}


def test_an_adapter_of_an_adapted_model_names_that_model(folder, data, tmp_path):
    """Not the model beneath: loaded from there it would be added to other weights than it was trained with."""
    train(_settings(folder, data, steps=1, lora=2), tmp_path / "first")
    train(_settings(str(tmp_path / "first"), data, steps=1, lora=2), tmp_path / "second")
    told = json.loads((tmp_path / "second" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str(tmp_path / "first")
