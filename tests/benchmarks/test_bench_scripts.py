"""Helpers of the scripts in bench/: runs that continue after an interruption, and tables from stored results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"


def _load_script(name):
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def partial_run(tmp_path):
    module = _load_script("partial_run")
    module.FOLDER, module.RESULTS = tmp_path / "build", tmp_path
    return module


def test_partial_run_continues_after_interruption(partial_run, tmp_path):
    partial_run.PartialRun("growth", lengths=(1, 2)).add({"tokens": 1})
    with (tmp_path / "build" / "growth.jsonl").open("a") as file:
        file.write('{"tokens": ')  # killed while it wrote the next row
    run = partial_run.PartialRun("growth", lengths=(1, 2))
    assert run.rows == [{"tokens": 1}]
    run.add({"tokens": 2})
    run.finish({"rows": run.rows})
    assert json.loads((tmp_path / "growth.json").read_text()) == {"rows": [{"tokens": 1}, {"tokens": 2}]}
    assert partial_run.PartialRun("growth", lengths=(1, 2)).rows == [], "a finished run starts again"


def test_partial_run_with_other_settings_starts_again(partial_run):
    partial_run.PartialRun("growth", lengths=(1, 2)).add({"tokens": 1})
    assert partial_run.PartialRun("growth", lengths=(1, 3)).rows == []


@pytest.mark.parametrize("method", ["ours, cells", "ours, ivf"])
def test_tables_name_the_ivf_store(method):
    row = {"method": method, "dtype": "int8", "tokens": 9, "ms_per_token": 2, "ratio_to_truncated": 1, "mass_recall": 1}
    table = _load_script("readme_table").decode_table({"rows": [{**row, "bytes_per_source_token": 8}]})
    assert table.splitlines()[-1] == "| **ours, ivf** | int8 | 8 | 2 ms (1.00 ×) |"


_REFERENCES = ["the cat", "a dog"]
ITEMS = [{"key": key, "document": "a b", "question": f"{key}?", "references": _REFERENCES} for key in "abc"]


def _answer_all(script, output, predictions):
    """Run the script's loop with a worker that has these predictions; returns the asked questions and what failed."""
    asked, rows = [], script.read_rows(output)

    def ask(item):
        asked.append(item["question"])
        prediction = predictions[item["question"][0]]
        return {"error": "broken"} if prediction is None else {"prediction": prediction, "seconds": 2.0}

    failed = script.answer_missing(ITEMS, rows, output, ask)
    return asked, script.summary(ITEMS, rows, failed)


def test_infini_retri_continues_and_counts_failures(tmp_path):
    script, output = _load_script("infini_retri"), tmp_path / "out" / "answers.csv"
    predictions = {"a": 'cat,\nor "dog"', "b": None, "c": "The dog."}
    asked, line = _answer_all(script, output, predictions)
    assert asked == ["a?", "b?", "c?"]
    assert line == "F1 75.00, 2.0 s per question, 2 of 3 questions answered, 1 failed and are not counted"
    complete = output.read_bytes()
    assert complete.startswith(b"key,question,prediction,seconds,f1\na,a?,")
    for cut in (1, 4, 30):  # killed while it wrote the last row
        output.write_bytes(complete[:-cut])
        asked, line = _answer_all(script, output, {**predictions, "b": "bird"})
        answered = list(script.read_rows(output))
        assert (asked, answered) == ((["b?", "c?"], ["a", "b", "c"]) if cut < 30 else (["a?", "b?", "c?"], list("abc")))
        assert line == "F1 50.00, 2.0 s per question, 3 of 3 questions answered"
        assert script.read_rows(output)["a"]["prediction"] == predictions["a"]


def test_infini_retri_refuses_other_files(tmp_path):
    script, path = _load_script("infini_retri"), tmp_path / "file"
    path.write_text("key,answer\na,b\n")
    with pytest.raises(ValueError, match="has the columns key, answer; expected key, question"):
        script.read_rows(path)
    path.write_text("".join(json.dumps(item) + "\n" for item in (*ITEMS, ITEMS[0])))
    with pytest.raises(ValueError, match="line 4: the key 'a' occurs twice"):
        script.read_items(path)
    path.write_text(json.dumps({**ITEMS[0], "question": None}) + "\n")
    with pytest.raises(ValueError, match="line 1: expected key, document and question"):
        script.read_items(path)
    path.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    assert script.read_items(path) == ITEMS
