"""Evaluation runs: every method, resumed and refused runs, malformed data, and comparisons."""

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

from unlimiformer import Unlimiformer, summaries
from unlimiformer.errors import InputError, StorageError, UnlimiformerError
from unlimiformer.evaluation import METHODS, EvaluationSettings, Result, compare, evaluate, run
from unlimiformer.text.document_text import DocumentText
from unlimiformer.utils.resumable_run import ResumableRun

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
    fields = {
        "model": model,
        "data": data,
        "generation": {"max_new_tokens": 6},
        "form": "{question} w9",
        "config": {"top_k": 8},
    }
    return EvaluationSettings(**{**fields, **changes})


def _read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def _answers(folder):
    rows = _read(folder / run.PREDICTIONS)
    return {(row["key"], row["seed"]): row["answer"] for row in rows}


def test_methods_answer_as_the_wrapper_does(model, data, tmp_path):
    methods = [method for method in METHODS if method not in ("full", *summaries.METHODS)]
    for method in methods:
        config = {} if method == "sled" else {"top_k": 8}
        evaluate(_settings(model, data, method=method, config=config), tmp_path / method)
    rows = _read(tmp_path / "unlimiformer" / run.PREDICTIONS)
    lines = {line["question"]: line for line in _read(data)}
    configs = {"unlimiformer": {"top_k": 8}, "sled": {"top_k": 10**6}, "memorizing": {"top_k": 8, "layers": [1]}}
    for method, config in configs.items():
        answers = {row["question"]: row["answer"] for row in _read(tmp_path / method / run.PREDICTIONS)}
        with Unlimiformer.from_pretrained(model, **config) as wrapped:
            for row in rows:
                document, question = lines[row["question"]]["document"], row["question"]
                output = wrapped.generate(document, prefix=f"{question} w9", max_new_tokens=6, do_sample=False)
                assert answers[question] == output.text
    methods.remove("bm25")
    by_method = [sorted(_answers(tmp_path / method).values()) for method in methods]
    assert len(set(map(json.dumps, by_method))) == 5, "all methods differ on this data"
    for method in ("bm25", "truncate"):  # behind a space both have the same tokens: these documents are one passage
        evaluate(_settings(model, data, method=method, form="{question} w9 "), tmp_path / f"spaced-{method}")
    assert _answers(tmp_path / "spaced-bm25") == _answers(tmp_path / "spaced-truncate")


def test_ways_to_summarise_are_methods(model, data, tmp_path):
    with pytest.raises(InputError, match="expected documents without questions"):
        evaluate(_settings(model, data, method="direct"), tmp_path / "questions")
    documents = tmp_path / "documents.jsonl"
    rows = [{"document": line["document"], "answer": line["answer"]} for line in _read(data)]
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluate(_settings(model, documents, method="direct"), tmp_path / "direct")
    evaluate(_settings(model, documents), tmp_path / "unlimiformer")
    assert _answers(tmp_path / "direct") == _answers(tmp_path / "unlimiformer")
    for row in _read(tmp_path / "direct" / run.PREDICTIONS):
        assert " ".join(sentence["text"] for sentence in row["sentences"]) == row["answer"]
        assert all(sentence["passages"] for sentence in row["sentences"])


def test_longest_documents_come_first_and_batches_change_no_answer(model, data, tmp_path):
    alone = evaluate(_settings(model, data), tmp_path / "alone")
    rows = _read(tmp_path / "alone" / run.PREDICTIONS)
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
def test_resumed_run_ends_with_the_same_numbers(model, data, tmp_path, monkeypatch, temperature):
    seeds = (0, 1) if temperature else (0,)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {}
    settings = _settings(model, data, batch_size=2, generation={"max_new_tokens": 6, **sampling}, seeds=seeds)
    whole = evaluate(settings, tmp_path / "whole")
    answers, calls = run.Answerer.answers, []

    def stop_after_two(self, items):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(items)
        return answers(self, items)

    monkeypatch.setattr(run.Answerer, "answers", stop_after_two)
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
    monkeypatch.setattr(run, "load_on", None)  # a complete run needs no model, also for another metric
    assert evaluate(settings, tmp_path / "stopped") == resumed
    assert set(evaluate(replace(settings, metrics=("exact_match",)), tmp_path / "stopped").metrics) == {"exact_match"}


def test_a_test_split_gives_a_submission_without_scores(model, tmp_path):
    path = tmp_path / "test.jsonl"
    rows = [{"id": f"id{number}", "input": f"w{number}\n\nw5 w6 w7", "output": None} for number in range(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = evaluate(_settings(model, str(path), task="qasper"), tmp_path / "run")
    assert result.metrics == {} and result.scores == {} and len(result.keys) == 2
    submission = json.loads((tmp_path / "run" / run.SUBMISSION).read_text())
    assert submission.keys() == {"id0", "id1"} and sorted(submission.values()) == sorted(
        row["answer"] for row in _read(tmp_path / "run" / run.PREDICTIONS)
    )
    rows[0]["output"] = "w5"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="has answers to some questions only"):
        evaluate(_settings(model, str(path), task="qasper"), tmp_path / "mixed")


@pytest.mark.parametrize("place", ["window", "first", "decoder"])
def test_nothing_is_asked_for_a_summary_unless_somebody_wants_it(model, tmp_path, monkeypatch, place):
    path = tmp_path / "books.jsonl"
    path.write_text(json.dumps({"document": make_book(60), "answer": "w1"}) + "\n")
    index, indexed = Unlimiformer.index, []

    def record(self, source, *arguments, prefix=None, **options):
        indexed.append((source.text if isinstance(source, DocumentText) else source, prefix))
        return index(self, source, *arguments, prefix=prefix, **options)

    monkeypatch.setattr(Unlimiformer, "index", record)
    generate, prompts = Unlimiformer.generate, []

    def record_prompt(self, sources, prompt=None, prefix=None, **options):
        prompts.append((sources, prompt, prefix))
        return generate(self, sources, prompt=prompt, prefix=prefix, **options)

    monkeypatch.setattr(Unlimiformer, "generate", record_prompt)
    evaluate(_settings(model, str(path), place=place), tmp_path / "plain")
    assert all(prefix is None for _, prefix in indexed) and {source for source, _ in indexed} <= {make_book(60)}
    assert all(prompt in (None, [None]) and prefix is None for _, prompt, prefix in prompts)
    assert "w7 w9" not in str(indexed + prompts)
    evaluate(_settings(model, str(path), place=place, summary_prompt="w7"), tmp_path / "asked")
    assert "w7 w9" in str(indexed + prompts)


def test_resume_a_run_of_an_earlier_version(model, data, tmp_path):
    """Its folder has no lock."""
    settings, folder = _settings(model, data), tmp_path / "run"
    whole = evaluate(settings, folder)
    (folder / f"{run.PREDICTIONS}.lock").unlink()
    (folder / run.RESULT).unlink()
    rows = (folder / run.PREDICTIONS).read_text().splitlines(keepends=True)
    (folder / run.PREDICTIONS).write_text("".join(rows[:2]))
    stored = json.loads((folder / run.SETTINGS).read_text())
    assert {"model_digest", "made_by", "items", "task_version", "max_new_tokens", "seeds"} <= stored.keys()
    resumed = evaluate(settings, folder)
    assert resumed.scores == whole.scores
    assert (folder / run.PREDICTIONS).read_text().splitlines(keepends=True)[:2] == rows[:2]


def test_run_with_other_settings_is_refused(model, data, tmp_path):
    evaluate(_settings(model, data, generation={"max_new_tokens": 6, "num_beams": 1}), tmp_path / "run")
    with pytest.raises(
        InputError, match=r"was started with num_beams 1; give these settings, or choose another output"
    ):
        evaluate(_settings(model, data, generation={"max_new_tokens": 6, "num_beams": 2}), tmp_path / "run")
    task = tmp_path / "task.yaml"
    task.write_text("version: 1\nabout: mine\nmetrics: [f1]\nnew_tokens: 3\n")
    settings = _settings(model, data, task=str(task), generation={})
    evaluate(settings, tmp_path / "task")
    task.write_text("version: 2\nabout: mine\nmetrics: [f1]\nnew_tokens: 5\n")
    with pytest.raises(InputError, match=r"was started with max_new_tokens 3, task_version 1"):
        evaluate(settings, tmp_path / "task")
    other = tmp_path / "other.jsonl"
    other.write_text('{"document": "w1", "answer": "w2"}\n')
    with pytest.raises(InputError, match="was started with data"):
        evaluate(_settings(model, str(other)), tmp_path / "run")
    (tmp_path / "run" / run.SETTINGS).write_text("{")
    with pytest.raises(InputError, match="cannot be read as the settings of a run"):
        evaluate(_settings(model, data), tmp_path / "run")


def test_folder_with_other_files_is_refused(model, data, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="has other files and no run"):
        evaluate(_settings(model, data), tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter.txt"]


def test_folder_in_use_is_refused(model, data, tmp_path):
    folder = tmp_path / "run"
    with (
        ResumableRun.open(rows=folder / run.PREDICTIONS, settings=folder / run.SETTINGS, identity={}),
        pytest.raises(StorageError, match=r"another run is writing .*predictions\.jsonl; wait until it has finished"),
    ):
        evaluate(_settings(model, data), folder)
    assert len(evaluate(_settings(model, data), folder).keys) == 5  # the lock was released


@pytest.mark.parametrize("obstacle", ["file instead of the parent", "folder instead of the lock"])
def test_folder_that_cannot_be_written_is_not_taken_for_one_in_use(model, data, tmp_path, obstacle):
    if obstacle == "file instead of the parent":
        (tmp_path / "parent").touch()
    else:
        (tmp_path / "parent" / "run" / f"{run.PREDICTIONS}.lock").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cannot write .*: a file or folder of that name is in the way"):
        evaluate(_settings(model, data), tmp_path / "parent" / "run")


@pytest.mark.parametrize("method", ["unlimiformer", "sled"])
def test_input_limit_truncates_documents(model, data, tmp_path, method):
    changes = {"method": method, "config": {}}
    limited = evaluate(_settings(model, data, input_limit=50, **changes), tmp_path / "limited")
    lines = _read(data)
    for line in lines:
        line["document"] = " ".join(line["document"].split()[:50])
    short = tmp_path / "short.jsonl"
    short.write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluate(_settings(model, str(short), **changes), tmp_path / "short")
    assert sorted(_answers(tmp_path / "limited").values()) == sorted(_answers(tmp_path / "short").values())
    assert limited.settings["input_limit"] == 50


def test_malformed_lines_are_left_out_unless_strict(model, data, tmp_path):
    broken = tmp_path / "broken.jsonl"
    lines = Path(data).read_text().splitlines()
    broken.write_text("\n".join([lines[0], "{", *lines[1:], '{"document": 3}']) + "\n")
    log = []
    result = evaluate(_settings(model, str(broken)), tmp_path / "run", log.append)
    assert [int(re.search(r"line (\d+)", line)[1]) for line in result.left_out] == [2, 7]
    assert len(result.keys) == 5 and sum("left out" in line for line in log) == 2
    with pytest.raises(UnlimiformerError, match="line 2: no JSON"):
        evaluate(_settings(model, str(broken), strict=True), tmp_path / "strict")
    assert not (tmp_path / "strict").exists()
    broken.write_text("{\n")
    with pytest.raises(UnlimiformerError, match="has no examples"):
        evaluate(_settings(model, str(broken)), tmp_path / "none")


def test_question_with_several_references_is_one_item(model, tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": "w1 w2", "question": "w3", "answer": ["w5", "w6"]}) + "\n")
    result = evaluate(_settings(model, str(path), metrics=("f1",)), tmp_path / "run")
    (row,) = _read(tmp_path / "run" / run.PREDICTIONS)
    assert row["references"] == ["w5", "w6"] and len(result.keys) == 1


def test_references_of_a_question_stay_together(model, tmp_path):
    path = tmp_path / "d.jsonl"
    lines = [{"document": f"w1 w{n}", "question": "w3", "answer": ["w5", "w6", f"w{n}"]} for n in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluate(_settings(model, str(path), examples=3), tmp_path / "some")
    assert [len(row["references"]) for row in _read(tmp_path / "some" / run.PREDICTIONS)] == [3, 3, 3]
    evaluate(_settings(model, str(path)), tmp_path / "all")
    assert compare([tmp_path / "all", tmp_path / "some"]).items == 3


def test_equal_lines_are_different_items(model, tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text((json.dumps({"document": "w1 w2", "answer": "w5"}) + "\n") * 3)
    result = evaluate(_settings(model, str(path)), tmp_path / "run")
    assert len(set(result.keys)) == 3 and len(_read(tmp_path / "run" / run.PREDICTIONS)) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"document": " ", "answer": "x"}, "line 1: the document is empty"),
        ({"document": "w1", "question": "", "answer": "x"}, "line 1: the question is empty"),
        ({"document": "w1", "questions": []}, "line 1: no questions"),
    ],
)
def test_lines_without_document_or_question_are_left_out(model, tmp_path, line, message):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps({"document": "w1", "answer": "x"}) + "\n")
    result = evaluate(_settings(model, str(path)), tmp_path / "run")
    assert len(result.keys) == 1 and message in result.left_out[0]


def test_folder_can_be_used_after_a_mistyped_model(model, data, tmp_path):
    with pytest.raises(UnlimiformerError, match="has no config"):
        evaluate(_settings("./nowhere", data), tmp_path / "run")
    evaluate(_settings(model, data), tmp_path / "run")


def test_other_weights_in_the_same_folder_are_noticed(data, tmp_path, monkeypatch):
    folder = save(tmp_path / "model", make("bart"), make_tokenizer())
    answers = run.Answerer.answers

    def stop_at_third(self, items):
        if items[0].question == "w4":
            raise KeyboardInterrupt
        return answers(self, items)

    monkeypatch.setattr(run.Answerer, "answers", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        evaluate(_settings(folder, data), tmp_path / "run")
    monkeypatch.undo()
    save(tmp_path / "model", make("bart", seed=5), make_tokenizer())
    with pytest.raises(InputError, match=r"was started with model_digest .*: the weights differ"):
        evaluate(_settings(folder, data), tmp_path / "run")


def test_damaged_predictions(model, data, tmp_path):
    whole = evaluate(_settings(model, data), tmp_path / "run")
    path = tmp_path / "run" / run.PREDICTIONS
    path.write_bytes(path.read_bytes()[:-1])  # the last line lacks only its line break
    assert evaluate(_settings(model, data), tmp_path / "run").scores == whole.scores
    assert len(_read(path)) == 5
    path.write_text("x\n" + path.read_text())
    with pytest.raises(UnlimiformerError, match=r"line 1 is not a JSON object; repair or remove that line"):
        evaluate(_settings(model, data), tmp_path / "run")


def test_questions_in_the_decoder_share_one_index_per_document(model, data, tmp_path, monkeypatch):
    calls, index = [], Unlimiformer.index

    def count(self, *arguments, **options):
        calls.append(arguments)
        return index(self, *arguments, **options)

    monkeypatch.setattr(Unlimiformer, "index", count)
    evaluate(_settings(model, data, place="decoder", batch_size=4), tmp_path / "run")
    assert len(calls) == 4, "five questions about four documents"


def test_decoder_only_model(tokenizer, data, tmp_path):
    folder = save(tmp_path / "llama", tiny_decoder("llama"), tokenizer)
    changes = {"config": {"window": WINDOW, "top_k": 8, "block": 4}, "form": None, "generation": {"max_new_tokens": 3}}
    ours = evaluate(_settings(folder, data, **changes), tmp_path / "ours")
    plain = evaluate(_settings(folder, data, method="truncate", **changes), tmp_path / "plain")
    assert ours.keys == plain.keys and _answers(tmp_path / "ours") != _answers(tmp_path / "plain")
    beams = evaluate(
        _settings(folder, data, method="truncate", **{**changes, "generation": {"max_new_tokens": 3, "num_beams": 3}}),
        tmp_path / "beams",
    )
    assert beams.keys == plain.keys
    full = evaluate(_settings(folder, data, method="full", **changes), tmp_path / "full")
    assert full.keys == plain.keys and _answers(tmp_path / "full") != _answers(tmp_path / "plain")
    with pytest.raises(UnlimiformerError, match="the method is 'memorizing' and LlamaForCausalLM is decoder-only"):
        evaluate(_settings(folder, data, method="memorizing", **changes), tmp_path / "memorizing")
    with pytest.raises(
        UnlimiformerError, match="form was given; a decoder-only model gets the question after the text"
    ):
        evaluate(_settings(folder, data, **{**changes, "form": "{question}?"}), tmp_path / "form")


def test_result_carries_settings_and_versions(model, data, tmp_path):
    result = evaluate(_settings(model, data, metrics=("rouge", "exact_match")), tmp_path / "run")
    assert {"rouge1", "rouge2", "rougeL", "rouge", "exact_match"} == set(result.metrics)
    assert result.settings["config"] == {"top_k": 8} and result.settings["seeds"] == [0]
    assert {"unlimiformer", "torch", "transformers", "python"} <= set(result.versions)
    assert result.seconds > 0 and result.peak_bytes > 0 and (result.task, result.task_version) == ("jsonl", 2)
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
        (
            {"method": "full"},
            "the method is 'full' and BartForConditionalGeneration is an encoder–decoder, which reads",
        ),
        ({"method": "sled"}, "top_k was given with method 'sled', which decides it"),
        ({"config": {"focus": 40}}, "focus is 40 and questions stand before the document"),
        ({"task": "poetry"}, "no task 'poetry'"),
    ],
)
def test_invalid_settings_are_refused(model, data, tmp_path, changes, message):
    with pytest.raises(UnlimiformerError, match=message):
        evaluate(_settings(model, data, **changes), tmp_path / "run")


def test_compare_runs_item_by_item(model, data, tmp_path):
    for method in ("truncate", "unlimiformer"):
        evaluate(_settings(model, data, method=method, metrics=("f1",)), tmp_path / method)
    comparison = compare([tmp_path / "truncate" / "result.json", tmp_path / "unlimiformer" / "result.json"])
    assert comparison.items == 5 and comparison.names == ["truncate", "unlimiformer"]
    one, two = (Result.read(tmp_path / method) for method in ("truncate", "unlimiformer"))
    by_key = [dict(zip(result.keys, result.scores["f1"], strict=True)) for result in (one, two)]
    expected = sum(by_key[1][key] - by_key[0][key] for key in one.keys) / 5
    assert comparison.differences[0]["f1"].value == pytest.approx(expected)
    with pytest.raises(UnlimiformerError, match="1 result was given"):
        compare([tmp_path / "truncate"])
    fields = json.loads((tmp_path / "truncate" / "result.json").read_text())
    for change, message in (({"task": "qmsum"}, "different tasks"), ({"keys": ["x"] * 5}, "no item in common")):
        (tmp_path / "other.json").write_text(json.dumps({**fields, **change}))
        with pytest.raises(UnlimiformerError, match=message):
            compare([tmp_path / "truncate", tmp_path / "other.json"])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UnlimiformerError, match="is no result"):
        compare([tmp_path / "truncate", tmp_path / "other.json"])
