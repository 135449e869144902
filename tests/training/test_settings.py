"""Training settings and recipes: what is accepted, and what is refused with which message."""

from __future__ import annotations

import pytest

from unlimiformer.errors import InputError, UnlimiformerError
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
        ({"question": "behind"}, "question is 'behind'; expected one of: window, decoder"),
        ({"distractors": 5, "method": "random"}, "randomly drawn tokens would be distractors"),
        ({"dropout": 1.5}, r"dropout is 1.5; expected 0 or more"),
    ],
)
def test_bad_settings_are_refused(make_settings, changes, message):
    with pytest.raises(UnlimiformerError, match=message):
        make_settings(**changes)


def test_recipes_of_the_package_are_valid():
    available = recipes()
    assert {name.split("/")[0] for name in available} >= {"govreport-bart-base", "booksum-primera", "qmsum-bart-base"}
    for name, values in available.items():
        assert TrainingSettings.of(values, name).method in STRATEGIES
    assert read_recipe("booksum-bart-base/alternating")["method"] == "alternating"
    with pytest.raises(InputError, match="no recipe 'magic'"):
        read_recipe("magic")


def test_recipe_from_a_file(tmp_path):
    path = tmp_path / "custom.yaml"
    path.write_text("model: m\ndata: d.jsonl\nmethod: sled\n")
    assert read_recipe(str(path)) == {"model": "m", "data": "d.jsonl", "method": "sled"}
    path.write_text("model: m\ncolour: red\n")
    with pytest.raises(InputError, match="has colour; expected only: model"):
        TrainingSettings.of(read_recipe(str(path)), "custom")
    path.write_text("- a\n")
    with pytest.raises(InputError, match="has no names and values"):
        read_recipe(str(path))
