"""Runs: every method, resumed runs, malformed lines, and comparisons."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import make_book, make_tokenizer, save
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.errors import UnlimiformerError
from unlimiformer.evaluation import METHODS, EvaluationSettings, Result, compare, evaluate, run

LENGTHS = (40, 200, 90, 60, 150)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    return save(tmp_path_factory.mktemp("model"), make("bart"), make_tokenizer())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Five questions; the second and the fourth are about one document."""
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    book = make_book(400).split()
    lines = [
        {"document": " ".join(book[number : number + length]), "question": f"w{number}", "answer": f"w{number} w5"}
        for number, length in enumerate(LENGTHS)
    ]
    lines[3]["document"] = lines[1]["document"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def _settings(model, data, **changes):
    told = {"model": model, "data": data, "new_tokens": 6, "form": "{question} w9", "config": {"top_k": 8}}
    return EvaluationSettings(**{**told, **changes})


def _lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def _answers(folder):
    rows = _lines(folder / run.PREDICTIONS)
    return {(row["key"], row["seed"]): row["answer"] for row in rows}


def test_every_method_answers_as_the_wrapper_does(model, data, tmp_path):
    results = {}
    for method in METHODS:
        config = {} if method == "sled" else {"top_k": 8}
        results[method] = evaluate(_settings(model, data, method=method, config=config), tmp_path / method)
    rows = _lines(tmp_path / "unlimiformer" / run.PREDICTIONS)
    lines = {line["question"]: line for line in _lines(data)}
    settings = {"unlimiformer": {"top_k": 8}, "sled": {"top_k": 10**6}, "memorizing": {"top_k": 8, "layers": [1]}}
    for method, given in settings.items():
        told = {row["question"]: row["answer"] for row in _lines(tmp_path / method / run.PREDICTIONS)}
        with Unlimiformer.from_pretrained(model, **given) as u:
            for row in rows:
                document, question = lines[row["question"]]["document"], row["question"]
                expected = u.generate(document, prefix=f"{question} w9", max_new_tokens=6, do_sample=False).text
                assert told[question] == expected
    answers = {method: _answers(tmp_path / method) for method in METHODS}
    assert len({json.dumps(sorted(each.values())) for each in answers.values()}) == 4, "all methods differ here"


def test_the_longest_come_first_and_batches_change_nothing(model, data, tmp_path):
    alone = evaluate(_settings(model, data), tmp_path / "alone")
    rows = _lines(tmp_path / "alone" / run.PREDICTIONS)
    assert [row["question"] for row in rows] == ["w1", "w3", "w4", "w2", "w0"]
    together = evaluate(_settings(model, data, batch_size=3), tmp_path / "together")
    assert _answers(tmp_path / "alone") == _answers(tmp_path / "together")
    assert alone.metrics == together.metrics
    short = _settings(model, data, batch_size=3, method="truncate")
    single = _settings(model, data, method="truncate")
    evaluate(short, tmp_path / "short")
    evaluate(single, tmp_path / "single")
    assert _answers(tmp_path / "short") == _answers(tmp_path / "single")


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_run_that_was_stopped_ends_with_the_same_numbers(model, data, tmp_path, monkeypatch, temperature):
    seeds = (0, 1) if temperature else (0,)
    settings = _settings(model, data, batch_size=2, temperature=temperature, seeds=seeds)
    whole = evaluate(settings, tmp_path / "whole")
    answer, calls = run.Answering.answers, []

    def stopped(self, items):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(items)
        return answer(self, items)

    monkeypatch.setattr(run.Answering, "answers", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate(settings, tmp_path / "stopped")
    monkeypatch.undo()
    predictions = tmp_path / "stopped" / run.PREDICTIONS
    assert predictions.read_bytes().count(b"\n") == 4 and not (tmp_path / "stopped" / run.RESULT).exists()
    predictions.write_bytes(predictions.read_bytes()[:-9])  # killed in the middle of a line
    resumed = evaluate(settings, tmp_path / "stopped")
    assert _answers(tmp_path / "stopped") == _answers(tmp_path / "whole")
    assert (resumed.metrics, resumed.scores, resumed.by_seed) == (whole.metrics, whole.scores, whole.by_seed)
    if temperature:
        first, second = ({k: a for (k, s), a in _answers(tmp_path / "whole").items() if s == seed} for seed in seeds)
        assert first != second
    monkeypatch.setattr(run, "load_on", None)  # a whole run needs no model, also for another metric
    assert evaluate(settings, tmp_path / "stopped") == resumed
    assert set(evaluate(replace(settings, metrics=("exact_match",)), tmp_path / "stopped").metrics) == {"exact_match"}


def test_a_folder_has_one_run(model, data, tmp_path):
    evaluate(_settings(model, data), tmp_path / "run")
    with pytest.raises(UnlimiformerError, match=r"has a run with beams 1; give these, or another folder"):
        evaluate(_settings(model, data, beams=2), tmp_path / "run")
    letters = tmp_path / "letters.yaml"
    letters.write_text("version: 1\nabout: mine\nmetrics: [f1]\nnew_tokens: 3\n")
    mine = _settings(model, data, task=str(letters), new_tokens=None)
    evaluate(mine, tmp_path / "mine")
    letters.write_text("version: 2\nabout: mine\nmetrics: [f1]\nnew_tokens: 5\n")
    with pytest.raises(UnlimiformerError, match=r"has a run with new_tokens 3, task_version 1"):
        evaluate(mine, tmp_path / "mine")
    other = tmp_path / "other.jsonl"
    other.write_text('{"document": "w1", "answer": "w2"}\n')
    with pytest.raises(UnlimiformerError, match="has a run with data"):
        evaluate(_settings(model, str(other)), tmp_path / "run")
    (tmp_path / "run" / run.SETTINGS).write_text("{")
    with pytest.raises(UnlimiformerError, match="cannot be read; expected a new folder"):
        evaluate(_settings(model, data), tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(UnlimiformerError, match="has other files and no run"):
        evaluate(_settings(model, data), tmp_path / "full")


@pytest.mark.parametrize("method", ["unlimiformer", "sled"])
def test_a_limit_holds(model, data, tmp_path, method):
    changes = {"method": method, "config": {}}
    limited = evaluate(_settings(model, data, input_limit=50, **changes), tmp_path / "limited")
    lines = _lines(data)
    for line in lines:
        line["document"] = " ".join(line["document"].split()[:50])
    short = tmp_path / "short.jsonl"
    short.write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluate(_settings(model, str(short), **changes), tmp_path / "short")
    assert sorted(_answers(tmp_path / "limited").values()) == sorted(_answers(tmp_path / "short").values())
    assert limited.settings["input_limit"] == 50


def test_malformed_lines_stop_nothing_unless_strict(model, data, tmp_path):
    broken = tmp_path / "broken.jsonl"
    lines = Path(data).read_text().splitlines()
    broken.write_text("\n".join([lines[0], "{", *lines[1:], '{"document": 3}']) + "\n")
    heard = []
    result = evaluate(_settings(model, str(broken)), tmp_path / "run", heard.append)
    assert [int(re.search(r"line (\d+)", line)[1]) for line in result.left_out] == [2, 7]
    assert len(result.keys) == 5 and sum("left out" in line for line in heard) == 2
    with pytest.raises(UnlimiformerError, match="line 2: no JSON"):
        evaluate(_settings(model, str(broken), strict=True), tmp_path / "strict")
    assert not (tmp_path / "strict").exists()
    broken.write_text("{\n")
    with pytest.raises(UnlimiformerError, match="has no examples"):
        evaluate(_settings(model, str(broken)), tmp_path / "none")


def test_one_question_with_several_answers_is_asked_once(model, tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": "w1 w2", "question": "w3", "answer": ["w5", "w6"]}) + "\n")
    result = evaluate(_settings(model, str(path), metrics=("f1",)), tmp_path / "run")
    (row,) = _lines(tmp_path / "run" / run.PREDICTIONS)
    assert row["references"] == ["w5", "w6"] and len(result.keys) == 1


def test_the_answers_of_one_question_stay_together(model, tmp_path):
    path = tmp_path / "d.jsonl"
    lines = [{"document": f"w1 w{n}", "question": "w3", "answer": ["w5", "w6", f"w{n}"]} for n in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluate(_settings(model, str(path), examples=3), tmp_path / "some")
    assert [len(row["references"]) for row in _lines(tmp_path / "some" / run.PREDICTIONS)] == [3, 3, 3]
    evaluate(_settings(model, str(path)), tmp_path / "all")
    assert compare([tmp_path / "all", tmp_path / "some"]).items == 3


def test_equal_lines_are_items_of_their_own(model, tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text((json.dumps({"document": "w1 w2", "answer": "w5"}) + "\n") * 3)
    result = evaluate(_settings(model, str(path)), tmp_path / "run")
    assert len(set(result.keys)) == 3 and len(_lines(tmp_path / "run" / run.PREDICTIONS)) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"document": " ", "answer": "x"}, "line 1: the document is empty"),
        ({"document": "w1", "question": "", "answer": "x"}, "line 1: the question is empty"),
        ({"document": "w1", "questions": []}, "line 1: no questions"),
    ],
)
def test_what_cannot_be_asked_is_left_out(model, tmp_path, line, message):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps({"document": "w1", "answer": "x"}) + "\n")
    result = evaluate(_settings(model, str(path)), tmp_path / "run")
    assert len(result.keys) == 1 and message in result.left_out[0]


def test_a_mistyped_model_spoils_no_folder(model, data, tmp_path):
    with pytest.raises(UnlimiformerError, match="has no config"):
        evaluate(_settings("./nowhere", data), tmp_path / "run")
    evaluate(_settings(model, data), tmp_path / "run")


def test_another_model_in_the_same_place_is_noticed(data, tmp_path, monkeypatch):
    folder = save(tmp_path / "model", make("bart"), make_tokenizer())
    answer = run.Answering.answers
    monkeypatch.setattr(run.Answering, "answers", lambda self, items: _stop(answer(self, items), items))
    with pytest.raises(KeyboardInterrupt):
        evaluate(_settings(folder, data), tmp_path / "run")
    monkeypatch.undo()
    torch.manual_seed(99)
    save(tmp_path / "model", make("bart", seed=5), make_tokenizer())
    with pytest.raises(UnlimiformerError, match="has a run with model_digest"):
        evaluate(_settings(folder, data), tmp_path / "run")


def _stop(answers, items):
    if items[0].question == "w4":
        raise KeyboardInterrupt
    return answers


def test_predictions_that_were_harmed(model, data, tmp_path):
    whole = evaluate(_settings(model, data), tmp_path / "run")
    path = tmp_path / "run" / run.PREDICTIONS
    path.write_bytes(path.read_bytes()[:-1])  # the last line is whole but for its end
    assert evaluate(_settings(model, data), tmp_path / "run").scores == whole.scores
    assert len(_lines(path)) == 5
    path.write_text("x\n" + path.read_text())
    with pytest.raises(UnlimiformerError, match=r"line 1 is no row; mend or remove that line"):
        evaluate(_settings(model, data), tmp_path / "run")


def test_a_question_in_the_decoder_has_a_text_read_once(model, data, tmp_path, monkeypatch):
    readings, index = [], Unlimiformer.index
    monkeypatch.setattr(Unlimiformer, "index", lambda self, *a, **k: (readings.append(1), index(self, *a, **k))[1])
    evaluate(_settings(model, data, place="decoder", batch_size=4), tmp_path / "run")
    assert len(readings) == 4, "five questions about four documents"


def test_a_decoder_only_model(tokenizer, data, tmp_path):
    folder = save(tmp_path / "llama", tiny_decoder("llama"), tokenizer)
    given = {"config": {"window": WINDOW, "top_k": 8, "block": 4}, "form": None, "new_tokens": 3}
    ours = evaluate(_settings(folder, data, **given), tmp_path / "ours")
    plain = evaluate(_settings(folder, data, method="truncate", **given), tmp_path / "plain")
    assert ours.keys == plain.keys and _answers(tmp_path / "ours") != _answers(tmp_path / "plain")
    beams = evaluate(_settings(folder, data, method="truncate", beams=3, **given), tmp_path / "beams")
    assert beams.keys == plain.keys
    with pytest.raises(UnlimiformerError, match="the method is 'memorizing' and LlamaForCausalLM is decoder-only"):
        evaluate(_settings(folder, data, method="memorizing", **given), tmp_path / "memorizing")
    with pytest.raises(UnlimiformerError, match="form was given; a decoder-only model is asked behind the text"):
        evaluate(_settings(folder, data, **{**given, "form": "{question}?"}), tmp_path / "form")


def test_a_result_carries_all_that_decided_it(model, data, tmp_path):
    result = evaluate(_settings(model, data, metrics=("rouge", "exact_match")), tmp_path / "run")
    assert {"rouge1", "rouge2", "rougeL", "rouge", "exact_match"} == set(result.metrics)
    assert result.settings["config"] == {"top_k": 8} and result.settings["seeds"] == [0]
    assert {"unlimiformer", "torch", "transformers", "python"} <= set(result.versions)
    assert result.seconds > 0 and result.peak_bytes > 0 and (result.task, result.task_version) == ("jsonl", 1)
    assert Result.read(tmp_path / "run") == result


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "magic"}, "method is 'magic'; expected one of: unlimiformer"),
        ({"metrics": ("bleu",)}, "no metric bleu"),
        ({"seeds": (1, 2)}, "all give the same answers"),
        ({"seeds": ()}, "expected one or more"),
        ({"input_limit": 0}, "input_limit is 0"),
        ({"place": "margin"}, "place is 'margin'"),
        ({"layer": 1}, "a layer was given; it is for method 'memorizing'"),
        ({"method": "sled"}, "top_k was given with method 'sled', which decides it"),
        ({"config": {"focus": 40}}, "focus is 40 and questions stand before every window"),
        ({"task": "poetry"}, "no task 'poetry'"),
    ],
)
def test_bad_settings_are_named(model, data, tmp_path, changes, message):
    with pytest.raises(UnlimiformerError, match=message):
        evaluate(_settings(model, data, **changes), tmp_path / "run")


def test_runs_are_compared_item_by_item(model, data, tmp_path):
    for method in ("truncate", "unlimiformer"):
        evaluate(_settings(model, data, method=method, metrics=("f1",)), tmp_path / method)
    found = compare([tmp_path / "truncate" / "result.json", tmp_path / "unlimiformer" / "result.json"])
    assert found.items == 5 and found.names == ["truncate", "unlimiformer"]
    one, two = (Result.read(tmp_path / method) for method in ("truncate", "unlimiformer"))
    by_key = [dict(zip(each.keys, each.scores["f1"], strict=True)) for each in (one, two)]
    expected = sum(by_key[1][key] - by_key[0][key] for key in one.keys) / 5
    assert found.differences[0]["f1"].value == pytest.approx(expected)
    with pytest.raises(UnlimiformerError, match="1 result was given"):
        compare([tmp_path / "truncate"])
    told = json.loads((tmp_path / "truncate" / "result.json").read_text())
    for change, message in (({"task": "qmsum"}, "different tasks"), ({"keys": ["x"] * 5}, "no item in common")):
        (tmp_path / "other.json").write_text(json.dumps({**told, **change}))
        with pytest.raises(UnlimiformerError, match=message):
            compare([tmp_path / "truncate", tmp_path / "other.json"])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UnlimiformerError, match="is no result"):
        compare([tmp_path / "truncate", tmp_path / "other.json"])
