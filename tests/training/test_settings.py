"""Training settings and recipes: what is accepted, and what is refused with which message."""

from __future__ import annotations

import pytest

from unlimiformer.errors import InputError, UnlimiformerError
from unlimiformer.evaluation import EvaluationSettings
from unlimiformer.training import TrainingSettings, read_recipe, recipes
from unlimiformer.training.strategies import STRATEGIES


@pytest.mark.parametrize(
    ("changes", "message"),
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
        ({"lora_layers": (1,)}, "lora_layers was given without lora"),
        ({"question": "behind"}, "question is 'behind'; expected one of: window, first, decoder"),
        ({"distractors": 5, "method": "random"}, "randomly drawn tokens would be distractors"),
        ({"dropout": 1.5}, r"dropout is 1.5; expected 0 or more"),
        ({"warmup": 1.5}, "warmup is 1.5; expected a number of steps, or a share"),
        ({"metric": "bleu"}, "metric is 'bleu'; expected one of: rouge, f1, exact_match"),
        ({"trainer": {"colour": 1}}, "trainer has colour; expected fields of transformers"),
    ],
)
def test_bad_settings_are_refused(make_settings, changes, message):
    with pytest.raises(UnlimiformerError, match=message):
        make_settings(**changes)


_LOW_COST = ("standard", "standard+test-sled", "standard+test", "early-stop", "chunked", "chunked+test")
_LONG_RANGE = ("standard", "sled", "memorizing", "alternating")
_DOCUMENTS = ("govreport", "summscreen")
_QUESTIONS = ("qasper", "contractnli", "qmsum", "narrativeqa")
_TABLES = {  # of the paper: base model, data sets and rows, as they stand there
    3: [("bart-base", _DOCUMENTS, _LOW_COST), ("primera", _DOCUMENTS, ("standard", "standard+test"))],
    4: [("bart-base", _DOCUMENTS, _LONG_RANGE), ("primera", _DOCUMENTS, ("standard", "memorizing", "alternating"))],
    5: [
        (
            "bart-base",
            ("booksum",),
            ("standard", "standard+test", "early-stop", "memorizing", "retrieval", "random", "alternating"),
        ),
        (
            "primera",
            ("booksum",),
            ("standard", "standard+test", "early-stop", "retrieval", "random", "alternating"),
        ),
    ],
    6: [("bart-base", _QUESTIONS, ("standard", "alternating"))],
    9: [
        ("bart-base", _DOCUMENTS, (*_LOW_COST, *_LONG_RANGE)),
        ("primera", _DOCUMENTS, ("standard", "standard+test", "early-stop", "memorizing", "alternating")),
    ],
}


@pytest.mark.parametrize("table", _TABLES)
def test_every_row_of_a_table_of_the_paper_has_a_recipe(table):
    rows = {
        f"{task}-{model}/{method}" for model, tasks, methods in _TABLES[table] for task in tasks for method in methods
    }
    assert {name for name, recipe in recipes().items() if table in recipe.tables} == rows


def test_recipes_of_the_package_are_valid():
    for name, recipe in recipes().items():
        training = TrainingSettings.of(recipe.train, name)
        assert training.method in STRATEGIES
        if recipe.tables:
            test = EvaluationSettings(training.model, **recipe.test)
            assert (training.seed, training.patience, training.warmup) == (42, 10, 0.1)
            assert training.trainer == {"adam_beta2": 0.98, "adam_epsilon": 1e-6} and training.weight_decay == 0.001
            assert test.task == training.data == training.validation


def test_a_recipe_trains_and_tests_as_its_row_says():
    sled, chunked = read_recipe("govreport-bart-base/sled"), read_recipe("summscreen-bart-base/chunked+test")
    assert (sled.train["method"], sled.train["window"], sled.train["validation_limit"]) == ("sled", 256, 16384)
    assert sled.test == {"task": "govreport", "method": "sled", "place": "window", "input_limit": 16384}
    assert (chunked.train["method"], chunked.test["method"]) == ("chunked", "unlimiformer")
    assert read_recipe("narrativeqa-bart-base/alternating").train["epochs"] == 2
    assert read_recipe("qasper-bart-base/alternating").train["epochs"] == 20
    with pytest.raises(InputError, match="no recipe 'magic'"):
        read_recipe("magic")


def test_recipe_from_a_file(tmp_path):
    path = tmp_path / "custom.yaml"
    path.write_text("model: m\ndata: d.jsonl\nmethod: sled\n")
    assert read_recipe(str(path)).train == {"model": "m", "data": "d.jsonl", "method": "sled"}
    path.write_text("model: m\ncolour: red\n")
    with pytest.raises(InputError, match="has colour; expected only: model"):
        TrainingSettings.of(read_recipe(str(path)).train, "custom")
    path.write_text("- a\n")
    with pytest.raises(InputError, match="has no names and values"):
        read_recipe(str(path))
