"""A PDF wherever the command line takes a file; its pages stand in memories and in citations."""

from __future__ import annotations

import json

import pytest
from conftest import make_book
from document_files import make_pdf, set_column
from warm_cli import run

from unlimiformer import Memory


@pytest.fixture
def pdf(tmp_path):
    """A PDF of four pages."""
    words = make_book(200).split()
    pages = [set_column([" ".join(words[start : start + 50]) + "."], 72, 760, 450) for start in range(0, 200, 50)]
    path = tmp_path / "book.pdf"
    path.write_bytes(make_pdf(pages))
    return str(path)


def test_ask_cites_the_page(pdf, llama_folder):
    command = ("ask", pdf, "w5 w6", "--model", llama_folder, "--max-new-tokens", "4")
    shown = run(*command).stdout.decode()
    passage = json.loads(run(*command, "--json").stdout)["answers"][0]["passages"][0]
    assert passage["location"] in {"p. 1", "p. 2", "p. 3", "p. 4"}
    assert f"    {passage['location']}: … " in shown


def test_pages_are_kept_in_a_memory_and_continued(pdf, llama_folder, tmp_path):
    folder = str(tmp_path / "book.memory")
    run("index", pdf, "-o", folder, "--model", llama_folder)
    memory = Memory.load(folder)
    assert [location.label for location in memory.locations] == ["p. 1", "p. 2", "p. 3", "p. 4"]
    start = memory.locations[2].start
    assert memory.citations.at(start) == "p. 3" and memory.citations.at(start - 2) == "p. 2"
    text = memory.text
    run("index", pdf, "-o", folder, "--model", llama_folder, "--append")
    appended = Memory.load(folder)
    assert [location.label for location in appended.locations] == ["p. 1", "p. 2", "p. 3", "p. 4"] * 2
    assert appended.text[appended.locations[4].start :] == text
    assert Memory.load(tmp_path / "book.memory").locations == appended.locations
    appended.save(tmp_path / "copy.memory")
    assert Memory.load(tmp_path / "copy.memory").locations == appended.locations


def test_summaries_cite_pages(pdf, llama_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))
    command = ("summarize", pdf, "--model", llama_folder, "--words", "30", "--method", "hierarchical")
    assert "[1] p. " in run(*command).stdout.decode()
    sentence = json.loads(run(*command, "--json").stdout)["chapters"][0]["sentences"][0]
    assert sentence["passages"][0]["location"].startswith("p. ")


def test_generate_and_plan_take_a_pdf(pdf, t5_folder):
    options = ("--model", t5_folder, "--json")
    generated = json.loads(run("generate", pdf, *options, "--max-new-tokens", "4").stdout)
    assert generated["source_tokens"] == json.loads(run("plan", pdf, *options).stdout)["tokens"] > 200


def test_run_takes_a_folder_of_documents(pdf, llama_folder, tmp_path):
    output = tmp_path / "out.jsonl"
    run(
        "run", pdf, "--task", "ask", "--model", llama_folder, "--question", "w5 w6", "-o", str(output), "--workers", "1"
    )
    (row,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert row["id"] == "book.pdf" and row["answers"][0]["passages"][0]["location"].startswith("p. ")
