"""Training runs from settings: every method, accumulation, LoRA, dropout and limits."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from conftest import make_book, save
from safetensors.torch import load_file
from tiny_models import WINDOW, make
from training_helpers import load_weights, read_metrics
from transformers import Seq2SeqTrainingArguments

from unlimiformer import Unlimiformer, training
from unlimiformer.errors import MissingPackageError
from unlimiformer.hub.loading import load
from unlimiformer.qa import QuestionFormat
from unlimiformer.training import STRATEGIES, LengthLimits, Seq2SeqDataset, UnlimiformerTrainer, examples, train
from unlimiformer.training.run import load_model


def test_public_names_exist():
    assert all(hasattr(training, name) for name in training.__all__)


@pytest.mark.parametrize("method", list(STRATEGIES))
@pytest.mark.parametrize("question", ["window", "decoder"])
def test_every_method_trains_a_usable_model(model_folder, make_settings, data, tmp_path, method, question):
    settings = make_settings(method=method, question=question, validation=data, validation_examples=2)
    metrics = train(settings, tmp_path / "out")
    assert metrics["steps"] == 3 and 0 <= metrics["eval_rouge1"] <= 100
    before, after = load_weights(model_folder), load_weights(tmp_path / "out")
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert any(name.startswith("encoder") for name in changed) and any(name.startswith("decoder") for name in changed)
    assert read_metrics(tmp_path / "out")[-1]["step"] == 3
    assert json.loads((tmp_path / "out" / "training.json").read_text())["method"] == method
    with Unlimiformer.from_pretrained(tmp_path / "out") as u:
        assert u.window == WINDOW and QuestionFormat.from_folder(tmp_path / "out") == QuestionFormat(question)
        strategy = STRATEGIES[method](8)
        strategy.prepare(u.model, u.engine.cross_attentions)
        assert u.engine.hooks.context.policies == [strategy.eval_policy(layer) for layer in range(2)]
        assert u.generate(make_book(100), max_new_tokens=3).token_ids.shape[0] > 1


def test_accumulated_batches_are_averaged(make_settings, tmp_path):
    """Two batches of two are one of four: without dropout they differ by rounding alone."""
    losses = []
    for batch_size, accumulation in ((4, 1), (2, 2)):
        output = tmp_path / str(batch_size)
        changes = {"batch_size": batch_size, "accumulation": accumulation, "steps": 2, "dropout": 0.0}
        train(make_settings(method="retrieval", learning_rate=1e-5, **changes), output)
        losses.append(read_metrics(output)[-1]["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_policies_are_asked_for_each_batch(make_settings, tmp_path, monkeypatch):
    steps = []
    original = STRATEGIES["alternating"].train_policy

    def train_policy(self, layer, step):
        steps.append(step)
        return original(self, layer, step)

    monkeypatch.setattr(STRATEGIES["alternating"], "train_policy", train_policy)
    train(make_settings(method="alternating", accumulation=2), tmp_path / "out")
    assert steps == [step for step in range(6) for _ in range(2)]  # two layers


def test_policies_are_restored_after_training(model_folder, data, tmp_path):
    u = Unlimiformer.from_pretrained(model_folder, window=WINDOW, top_k=8)
    policies = u.engine.hooks.context.policies
    limits = LengthLimits(None, None)
    dataset = Seq2SeqDataset(examples(data), u.tokenizer, QuestionFormat(), limits=limits, window=WINDOW)
    args = Seq2SeqTrainingArguments(output_dir=str(tmp_path), max_steps=1, report_to=[], save_strategy="no")
    UnlimiformerTrainer(u, STRATEGIES["random"](8), args, train_dataset=dataset).train()
    assert u.engine.hooks.context.policies is policies


def test_long_documents_are_truncated_and_counted(make_settings, tmp_path):
    messages = []
    train(make_settings(method="retrieval", source_limit=50, steps=1), tmp_path / "out", log=messages.append)
    assert "8 documents are longer than 50 tokens and were cut to that length" in messages


def test_lora_trains_only_an_adapter(model_folder, make_settings, tmp_path):
    train(make_settings(method="retrieval", lora=2), tmp_path / "out")
    adapter = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert adapter and all("lora" in name for name in adapter)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    with Unlimiformer.from_pretrained(tmp_path / "out", window=WINDOW) as u:
        u.generate(make_book(100), max_new_tokens=3)
        merged = u.model.state_dict()
    name = "decoder.block.0.layer.1.EncDecAttention.q.weight"
    assert not torch.allclose(merged[name], load_weights(model_folder)[name], atol=1e-7)


def test_adapter_of_an_adapted_model_names_that_model(make_settings, tmp_path):
    """Not the model beneath: the adapter would be added to other weights than those it was trained with."""
    train(make_settings(steps=1, lora=2), tmp_path / "first")
    train(make_settings(model=str(tmp_path / "first"), steps=1, lora=2), tmp_path / "second")
    config = json.loads((tmp_path / "second" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "first")


@pytest.mark.parametrize(("package", "extra"), [("peft", "lora"), ("accelerate", "train")])
def test_missing_package_is_named(make_settings, tmp_path, monkeypatch, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"'{package}'.*unlimiformer\[{extra}\]"):
        train(make_settings(lora=2), tmp_path / "out")


@pytest.mark.parametrize(("rate", "expected"), [(None, 0.1), (0.0, 0.0), (0.3, 0.3)])
def test_dropout_is_set_in_every_module(make_settings, rate, expected):
    wrapped = load_model(make_settings(dropout=rate))
    modules = list(wrapped.model.modules())
    rates = {module.p for module in modules if isinstance(module, torch.nn.Dropout)}
    rates |= {module.dropout for module in modules if isinstance(getattr(module, "dropout", None), float)}
    wrapped.remove()
    assert rates == {expected}


@pytest.mark.parametrize("family", ["bart", "t5gemma", "led"])
def test_dropout_reaches_inner_configs(family, tmp_path, tokenizer):
    model, _ = load(save(tmp_path, make(family), tokenizer), dropout=0.37)
    rates = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    names = ("dropout", "attention_dropout", "activation_dropout")
    rates += [rate for m in model.modules() for name in names if isinstance(rate := getattr(m, name, None), float)]
    assert rates and set(rates) == {0.37}
