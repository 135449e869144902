"""`unlimiformer bench summaries`."""

from __future__ import annotations

import csv
import json

import pytest
from conftest import make_tokenizer, save
from tiny_causal_models import tiny_decoder
from warm_cli import error_line, run

from unlimiformer.benchmarks.summaries import supported_share, write_requests
from unlimiformer.utils.jsonl import read_rows

TEXT = " ".join(f"w{word % 90}" for word in range(300))


def test_documents_with_a_summary(tmp_path):
    plot = {"question": "What is the plot of the story?", "answer": ["It ends.", "They die."]}
    fact = {"question": "Who dies?", "answer": "they"}
    rows = [
        {"document": "a", "summary": "b"},
        {"document": "c", "questions": [fact, plot]},
        {"document": "d", "questions": [fact]},
    ]
    source, target = tmp_path / "x.jsonl", tmp_path / "out" / "questions.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    write_requests(source, target, None)
    assert list(read_rows(target)) == [
        {"document": "a", "answer": "b"},
        {"document": "c", "answer": ["It ends.", "They die."]},
    ]


def test_sentences_whose_passages_name_an_entity():
    sentences = [
        {"text": "Anna left.", "passages": ["Then ANNA", "left."]},
        {"text": "Boris left.", "passages": ["Then he left."]},
        {"text": "they left.", "passages": []},
    ]
    assert supported_share(sentences, lambda text: {w.casefold() for w in text.split() if w[0].isupper()}) == 0.5
    assert supported_share(sentences[2:], lambda text: set()) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"), tiny_decoder("llama"), make_tokenizer())


def test_the_table(folder, tmp_path):
    data = tmp_path / "books" / "val.jsonl"
    data.parent.mkdir()
    row = {"document": TEXT, "summary": "In 1805 Anna left Paris."}
    data.write_text("".join(json.dumps({**row, "document": f"{TEXT} w{n}"}) + "\n" for n in range(2)))
    output = str(tmp_path / "out")
    command = ("bench", "summaries", str(data), "--model", folder, "--words", "30", "-o", output)
    rows = json.loads(run(*command, "--methods", "grounded,truncate,leading", "--json").stdout)
    assert [row["method"] for row in rows] == ["grounded", "truncate", "leading"]
    assert all(row["documents"] == 2 and row["data"] == "books-val" for row in rows)
    assert rows[0]["rouge1_p"] is None
    assert rows[1]["rouge1_p"] is not None
    with (tmp_path / "out" / "summaries.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6
    assert "no method" in error_line(*command, "--methods", "magic")
