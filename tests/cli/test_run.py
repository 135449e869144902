"""`unlimiformer run` from the command line; the workers themselves are tested in tests/batch."""

from __future__ import annotations

import json

import pytest
from conftest import make_book, make_tokenizer, save
from tiny_models import make
from warm_cli import run

from unlimiformer.batch import Status, Summary
from unlimiformer.cli.run import _duration, _status_line, _summary_line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models"), make("t5"), make_tokenizer())


@pytest.fixture
def documents(tmp_path):
    """A folder of three texts."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(make_book(60 * (number + 1)))
    return folder


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--task", "ask"), "there is no question; expected --question"),
        (("--task", "sing"), "the task is 'sing'; expected one of: summarize, ask, index"),
        (("--task", "index", "--question", "w1"), "expected task 'ask'"),
        (("--task", "ask", "--question", "w1", "--memories", "x"), "--memories was given with task 'ask'"),
        (("--task", "ask", "--question", "w1", "--max-new-tokens", "0"), "--max-new-tokens is 0"),
        (("--task", "ask", "--question", "w1", "--pattern", "*.pdf"), "expected files like '*.pdf'"),
        (("--task", "ask", "--question", "w1", "--workers", "0"), "workers is 0; expected at least 1"),
        (("--task", "ask", "--question", "w1", "--ray", "127.0.0.1:1"), "no Ray at '127.0.0.1:1'"),
    ],
)
def test_invalid_options_are_refused(folder, documents, tmp_path, options, reason):
    done = run("run", str(documents), "-o", str(tmp_path / "out.jsonl"), "--model", folder, *options, code=2)
    assert reason in done.stderr.decode()


def test_output_must_differ_from_input(folder, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"document": "w1"}\n')
    done = run("run", str(path), "-o", str(path), "--task", "summarize", "--model", folder, code=2)
    assert "--output is the input" in done.stderr.decode() and path.read_text() == '{"document": "w1"}\n'


def test_index_a_folder_then_ask(folder, documents, tmp_path):
    index, answers = tmp_path / "index.jsonl", tmp_path / "answers.jsonl"
    (documents / "empty[b].txt").write_text("")
    shared = ("--model", folder, "--workers", "1", "--top-k", "9")
    indexed = run("run", str(documents), "-o", str(index), "--task", "index", *shared, code=1)
    assert "1 failed: their rows say why" in " ".join(indexed.stderr.decode().split())
    options = ("--task", "ask", "--question", "w1 w2", "--json", *shared)
    summary = json.loads(run("run", str(index), "-o", str(answers), *options, code=1).stdout)
    assert summary["documents"] == 4 and summary["failed"] == 1
    rows = {row["id"]: row for row in map(json.loads, answers.read_text().splitlines())}
    assert set(rows) == {"0.txt", "1.txt", "2.txt", "empty[b].txt"}
    assert "the run that wrote this line reported an error: the text is empty" in rows["empty[b].txt"]["error"]
    for number in range(3):
        answer = rows[f"{number}.txt"]["answers"][0]
        assert answer["question"] == "w1 w2" and isinstance(answer["answer"], str)
        passage = answer["passages"][0]
        assert make_book(60 * (number + 1))[passage["start"] : passage["end"]] == passage["text"]


def test_status_and_summary_lines():
    assert [_duration(seconds) for seconds in (0.4, 61, 3723)] == ["0:00", "1:01", "1:02:03"]
    assert _status_line(Status(10, 0, 0, 0, 0.0, None)) == "0 of 10 documents · starting"
    assert _status_line(Status(10, 0, 0, 1, 0.0, None)) == "0 of 10 documents · 1 worker"
    assert _status_line(Status(10, 4, 1, 2, 0.5, 65.0)) == "4 of 10 documents · 1 failed · 2 workers · 1:05 left"
    line = _summary_line(Summary(10, 10, 1, 4, 60.0, 5.0, 360.0, 2, 1), "out.jsonl")
    assert "6 of them now, in 60.0 s (360 an hour, 2 workers, 1 replaced); 1 failed" in line
