"""Training runs from settings: every method, accumulation, LoRA, dropout and limits."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from conftest import make_book, save
from safetensors.torch import load_file
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make
from training_helpers import load_weights, read_metrics, write_jsonl
from transformers import Seq2SeqTrainingArguments, T5ForConditionalGeneration

from unlimiformer import Unlimiformer, training
from unlimiformer.errors import InputError, MissingPackageError
from unlimiformer.hub.loading import load
from unlimiformer.qa import QuestionFormat
from unlimiformer.training import (
    STRATEGIES,
    LengthLimits,
    Seq2SeqDataset,
    UnlimiformerTrainer,
    examples,
    train,
    validation,
)
from unlimiformer.training.run import _build_arguments, load_model


def test_public_names_exist():
    assert all(hasattr(training, name) for name in training.__all__)


@pytest.mark.parametrize("method", [method for method in STRATEGIES if method != "reread"])
@pytest.mark.parametrize("question", ["window", "first", "decoder"])
def test_every_method_trains_a_usable_model(model_folder, make_settings, data, tmp_path, method, question):
    settings = make_settings(method=method, question=question, validation=data, validation_examples=2)
    metrics = train(settings, tmp_path / "out")
    assert metrics["steps"] == 3 and 0 <= metrics["eval_f1"] <= 100
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


def test_reread_trains_windows_of_question_and_passages(make_settings, data, tmp_path, monkeypatch):
    """The question is in the window in training, and in the decoder afterwards, when it searches the passages."""
    seen = []
    forward = T5ForConditionalGeneration.forward

    def record(model, *args, **kwargs):
        if kwargs.get("labels") is not None:
            seen.append((kwargs["input_ids"], kwargs["decoder_input_ids"]))
        return forward(model, *args, **kwargs)

    monkeypatch.setattr(T5ForConditionalGeneration, "forward", record)
    train(make_settings(data=f"passages:{data}", method="reread", question="decoder", steps=1), tmp_path / "out")
    monkeypatch.undo()
    (inputs, decoder_inputs), *_ = seen
    first = examples(f"passages:{data}")
    assert inputs.shape[1] <= WINDOW and decoder_inputs.shape[1] <= 3, "the answer alone"
    tokenizer = load(tmp_path / "out")[1]
    asked = tokenizer.decode(inputs[0], skip_special_tokens=True).split()[0]
    assert asked in {example.question for example in first}
    with Unlimiformer.from_pretrained(tmp_path / "out") as u:
        assert u.config.selection == "reread" and QuestionFormat.from_folder(tmp_path / "out").place == "decoder"
        assert u.generate(make_book(200), prompt="w3", max_new_tokens=3).selected is not None
    with pytest.raises(InputError, match="the method is 'reread' and question 'window'; expected 'decoder'"):
        make_settings(method="reread")


def test_best_checkpoint_is_chosen_by_the_metric_over_all_correct_answers(make_settings, tmp_path, monkeypatch):
    """One question with two answers is asked once, and the better one counts."""
    data = write_jsonl(tmp_path / "data.jsonl", [{"document": "w1 w2", "question": "w3", "answer": ["w4", "w5 w6"]}])
    monkeypatch.setattr(validation, "decode_ids", lambda ids, tokenizer: ["w6 w5"] * len(ids))
    for metric, expected in (("f1", {"eval_f1": 100}), ("exact_match", {"eval_exact_match": 0})):
        settings = make_settings(validation=data, metric=metric, steps=1)
        metrics = train(settings, tmp_path / metric)
        assert expected.items() <= metrics.items()
    metrics = train(make_settings(validation=data, metric="rouge", steps=1), tmp_path / "rouge")
    assert metrics["eval_rouge1"] == 100 and metrics["eval_rouge"] == 0, "the geometric mean; no common bigram"


def test_validation_leaves_decoding_to_the_model(make_settings, model_folder, data, tmp_path, monkeypatch):
    calls = []

    def generate(model, **arguments):
        calls.append(arguments)
        return torch.full((len(arguments["input_ids"]), 2), 5)

    monkeypatch.setattr(T5ForConditionalGeneration, "generate", generate)
    train(make_settings(validation=data, validation_examples=1, new_tokens=7, steps=1), tmp_path / "own")
    assert calls[0].keys() == {"input_ids", "attention_mask", "max_new_tokens", "do_sample"}
    assert calls[0]["max_new_tokens"] == 7 and calls[0]["do_sample"] is False
    train(make_settings(validation=data, validation_examples=1, num_beams=3, steps=1), tmp_path / "beams")
    assert calls[-1]["num_beams"] == 3


@pytest.mark.parametrize("content", ["", "[1]", "[" * 100_000, "\xff"])
def test_damaged_metrics_of_a_finished_training_are_one_error(make_settings, tmp_path, content):
    settings = make_settings(steps=1)
    metrics = train(settings, tmp_path / "out")
    assert train(settings, tmp_path / "out") == metrics
    (tmp_path / "out" / "result.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=r"result.json is damaged; .* remove it"):
        train(settings, tmp_path / "out")
    (tmp_path / "out" / "result.json").unlink()
    assert train(settings, tmp_path / "out") == metrics


def test_values_that_the_trainer_does_not_take_are_one_error(make_settings, tmp_path):
    with pytest.raises(InputError, match=r"'eval_strategy': 'sometimes'.* transformers does not take it"):
        train(make_settings(trainer={"eval_strategy": "sometimes"}), tmp_path / "out")


def test_fields_of_the_trainer_are_passed_through(make_settings, tmp_path):
    settings = make_settings(warmup=0.1, trainer={"adam_beta2": 0.98, "label_smoothing_factor": 0.1})
    arguments = _build_arguments(settings, tmp_path)
    assert (arguments.adam_beta2, arguments.label_smoothing_factor, arguments.warmup_steps) == (0.98, 0.1, 0.1)


def test_some_layers_and_heads_retrieve_in_training(make_settings, tmp_path):
    train(make_settings(method="retrieval", layers=[1], heads=[0, 2], steps=1), tmp_path / "out")
    with Unlimiformer.from_pretrained(tmp_path / "out") as u:
        policies = u.engine.hooks.context.policies
        assert [policy.retrieves for policy in policies] == [False, True] and policies[1].heads == (0, 2)


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


@pytest.fixture
def causal_settings(make_settings, tmp_path, tokenizer):
    """Settings of training an adapter of a tiny decoder-only model on two questions about each short document."""
    words = make_book(240).split()
    rows = [
        {"document": " ".join(words[i : i + 30]), "question": words[i + j], "answer": "w7"}
        for i in range(0, 240, 30)
        for j in (3, 9)
    ]
    folder, data = save(tmp_path / "llama", tiny_decoder("llama"), tokenizer), write_jsonl(tmp_path / "d.jsonl", rows)
    defaults = {"model": folder, "data": data, "window": None, "top_k": None, "new_tokens": None, "lora": 2}
    return lambda **changes: make_settings(**{**defaults, **changes})


def test_lora_of_some_layers(causal_settings, tmp_path):
    train(causal_settings(method="standard", lora_layers=(0, 2)), tmp_path / "out")
    names = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {name.partition("layers.")[2][0] for name in names} == {"0", "2"}
    settings = json.loads((tmp_path / "out" / "unlimiformer.json").read_text())["settings"]
    assert settings["prompt_examples"] is False, "the model learned without examples in the prompt"


def test_bfloat16_keeps_small_updates_of_an_adapter(causal_settings, tmp_path):
    """The frozen weights are rounded, the adapter is not: in bfloat16 updates of 1e-6 would be lost."""
    for name, rate in (("before", 1e-15), ("after", 1e-6)):
        train(causal_settings(method="standard", bfloat16=True, steps=2, learning_rate=rate), tmp_path / name)
    before, after = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("before", "after"))
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert {after[name].dtype for name in after} == {torch.float32}
    assert any("lora_A" in name for name in changed)


def test_questions_about_one_document_are_one_row(causal_settings, tmp_path):
    train(causal_settings(method="standard", steps=None, epochs=1, validate_every=None), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "result.json").read_text())["steps"] == 8


@pytest.mark.parametrize("layers", [(7,), (0, 99), ()])
def test_layers_that_the_model_does_not_have_get_no_adapter(causal_settings, tmp_path, layers):
    with pytest.raises(InputError, match=r"lora_layers is .*; expected some of the model's \d layers"):
        train(causal_settings(method="standard", lora_layers=layers), tmp_path / "out")


def test_documents_that_exceed_the_context_are_refused_in_whole_rows(causal_settings, tmp_path):
    data = write_jsonl(tmp_path / "long.jsonl", [{"document": "w5 w6 w7 " * 400, "question": "w3", "answer": "w4"}])
    with pytest.raises(InputError, match=r"and the model reads at most .* give a smaller source_limit"):
        train(causal_settings(method="standard", data=data, source_limit=1200), tmp_path / "out")


def test_an_unfinished_run_of_an_earlier_version_continues(make_settings, tmp_path):
    """Its settings file lacks what later versions added."""
    settings = make_settings(steps=2)
    train(settings, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "training.json").read_text())
    assert settings.lora_layers is None and stored.pop("lora_layers") is None
    (tmp_path / "out" / "training.json").write_text(json.dumps(stored))
    (tmp_path / "out" / "result.json").unlink()
    assert train(settings, tmp_path / "out")["steps"] == 2
    with pytest.raises(InputError, match="has another training"):
        train(make_settings(steps=3), tmp_path / "out")


def test_other_methods_are_refused_for_decoder_only_models(causal_settings, tmp_path):
    with pytest.raises(InputError, match="expected retrieval or standard"):
        train(causal_settings(method="alternating"), tmp_path / "out")


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


def test_missing_package_is_named(make_settings, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingPackageError, match=r"'peft'.*unlimiformer-hf\[lora\]"):
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
