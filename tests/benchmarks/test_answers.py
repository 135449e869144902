"""`unlimiformer bench answers`: the sample of questions, the table, and that a run continues."""

from __future__ import annotations

import csv
import json

import pytest
from conftest import make_tokenizer, save
from tiny_causal_models import tiny_decoder
from warm_cli import error_line, run

from unlimiformer import UnlimiformerError
from unlimiformer.benchmarks.answers import QuestionSample, join_documents, split_seconds
from unlimiformer.evaluation import Result
from unlimiformer.utils.jsonl import read_rows


def _document(number: int) -> dict:
    text = " ".join(f"w{10 + (number * 7 + word) % 80}" for word in range(120))
    questions = [{"question": f"w{20 + n} w{30 + n}", "answer": [f"w{40 + n}"], "spans": [[0, 8]]} for n in range(4)]
    return {"id": f"the-story-{number}", "document": text, "questions": questions}


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "stories" / "val.jsonl"
    file.parent.mkdir()
    file.write_text("\n".join(json.dumps(_document(number)) for number in range(3)))  # no line break at the end
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"), tiny_decoder("llama"), make_tokenizer())


def _bench(data, folder, output, *more):
    settings = ("--model", folder, "--questions", "2", "--top-k", "32", "-o", str(output), "--json")
    return json.loads(run("bench", "answers", str(data), *settings, *more).stdout)


def test_the_table_has_a_line_for_every_method_and_a_run_continues(data, folder, tmp_path, monkeypatch):
    output = tmp_path / "out"
    before = data.read_bytes()
    rows = _bench(data, folder, output, "--methods", "unlimiformer,bm25,full")
    assert data.read_bytes() == before
    assert [row["method"] for row in rows] == ["unlimiformer", "bm25", "full"]
    assert all(row["questions"] == 6 and row["data"] == "stories-val" for row in rows)
    assert rows[0]["difference"] is None and rows[1]["p"] is not None
    assert rows[0]["evidence"] is not None and rows[1]["evidence"] is not None and rows[2]["evidence"] is None
    with (output / "answers.csv").open() as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == 18 and {row["method"] for row in answers} == {"unlimiformer", "bm25", "full"}
    with (output / "table.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["unlimiformer", "bm25", "full"]

    predictions = output / "stories-val" / "bm25" / "predictions.jsonl"
    lines = predictions.read_text().splitlines(keepends=True)
    predictions.write_text("".join(lines[:-2]))
    again = _bench(data, folder, output, "--methods", "unlimiformer,bm25,full")
    assert [row["f1"] for row in again] == [row["f1"] for row in rows]
    assert len(list(read_rows(predictions))) == 6


def test_the_sample_is_random_but_fixed(data, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        QuestionSample(documents=2, questions=2, seed=seed).write(data, tmp_path / name)
    first, second, other = (list(read_rows(tmp_path / name)) for name in "abc")
    assert first == second != other
    assert len(first) == 2 and all(len(row["questions"]) == 2 for row in first)


def test_a_folder_with_other_questions_is_refused(data, tmp_path):
    QuestionSample(questions=2).write(data, tmp_path / "questions.jsonl")
    QuestionSample(questions=2).write(data, tmp_path / "questions.jsonl")
    with pytest.raises(UnlimiformerError, match=r"other questions.*another folder"):
        QuestionSample(questions=3).write(data, tmp_path / "questions.jsonl")


def test_one_book_has_all_documents_and_moves_their_evidence():
    rows = [_document(0), _document(1)]
    book = join_documents(rows)
    assert "The Story 0\n\n" in book["document"] and len(book["questions"]) == 8
    for question, row in zip(book["questions"], [rows[0]] * 4 + [rows[1]] * 4, strict=True):
        ((start, end),) = question["spans"]
        assert book["document"][start:end] == row["document"][:8]
    assert book["questions"][4]["question"] == "In the story “The Story 1”: w20 w30"


def test_reading_is_what_the_first_question_takes_longer():
    keys = ["a", "b", "c", "d"]
    result = Result("jsonl", 2, {}, {}, keys, [0, 0, 1, 1], {}, {}, [], 0.0, 0, {})
    seconds = {"a": 11.0, "b": 1.0, "c": 7.0, "d": 2.0}
    reading, answering = split_seconds([{"key": key, "seconds": seconds[key]} for key in keys], result)
    assert reading == pytest.approx(15) and answering == pytest.approx(1.5)


@pytest.mark.parametrize("line", ['{"document": "w1"}', "[1]", "not JSON", '{"questions": []}'])
def test_a_malformed_file_is_named_with_its_line(folder, tmp_path, line):
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps(_document(0)) + "\n" + line + "\n")
    message = error_line("bench", "answers", str(file), "--model", folder, "-o", str(tmp_path / "out"))
    assert "line 2" in message and "questions" in message


def test_an_unknown_method_is_refused(data, folder, tmp_path):
    message = error_line("bench", "answers", str(data), "--model", folder, "--methods", "magic", "-o", str(tmp_path))
    assert "magic" in message and "bm25" in message
