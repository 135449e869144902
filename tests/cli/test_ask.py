"""`unlimiformer ask`."""

from __future__ import annotations

import json
from pathlib import Path

from warm_cli import error_line, run

ANSWER = ("--max-new-tokens", "6")
SETTINGS = ("--window", "64", "--top-k", "64")


def test_several_questions_about_one_file(llama_folder, book_file):
    command = ("ask", book_file, "w3 w4", "w8", "--model", llama_folder, *SETTINGS, *ANSWER)
    lines = run(*command).stdout.decode().splitlines()
    assert [line for line in lines if line in ("w3 w4", "w8")] == ["w3 w4", "w8"]
    assert sum("%: … " in line for line in lines) == 2
    answers = json.loads(run(*command, "--json").stdout)["answers"]
    assert [answer["question"] for answer in answers] == ["w3 w4", "w8"]
    text = Path(book_file).read_text()
    for answer in answers:
        (passage,) = answer["passages"]
        assert text[passage["start"] : passage["end"]] == passage["text"]


def test_a_memory_and_standard_input(llama_folder, book_file, book, tmp_path):
    options = ("--model", llama_folder, *ANSWER, "--json")
    memory = str(tmp_path / "book.memory")
    run("index", book_file, "-o", memory, "--model", llama_folder, *SETTINGS)
    results = [
        run("ask", memory, "w3", *options, "--top-k", "64"),
        run("ask", book_file, "w3", *options, *SETTINGS),
        run("ask", "-", "w3", *options, *SETTINGS, stdin=book.encode()),
    ]
    answers = [json.loads(done.stdout)["answers"][0]["answer"] for done in results]
    assert answers[0] == answers[1] == answers[2]


def test_an_encoder_decoder(t5_folder, book_file):
    done = run("ask", book_file, "w3", "--model", t5_folder, "--max-new-tokens", "5", "--json")
    (answer,) = json.loads(done.stdout)["answers"]
    assert answer["question"] == "w3" and answer["answer"]


def test_invalid_questions_and_settings(llama_folder, book_file, tmp_path):
    assert "some words" in error_line("ask", book_file, " ", "--model", llama_folder)
    assert "selection" in error_line("ask", book_file, "w1", "--model", llama_folder, "--selection", "x")
    memory = str(tmp_path / "book.memory")
    run("index", book_file, "-o", memory, "--model", llama_folder, *SETTINGS)
    message = error_line("ask", memory, "w1", "--model", llama_folder, "--selection", "blocks")
    assert "selection reread instead of blocks" in message


def test_provenance_as_a_page(t5_folder, llama_folder, book_file, tmp_path):
    options = ("--max-new-tokens", "4", "--provenance")
    run("ask", book_file, "w1", "--model", llama_folder, *options, str(tmp_path / "page.html"))
    assert "<!doctype html>" in (tmp_path / "page.html").read_text()
    message = error_line("ask", book_file, "w1", "--model", t5_folder, *options, str(tmp_path / "page.txt"))
    assert "expected a name that ends with .json or .html" in message
    message = error_line("ask", book_file, "w1", "w2", "--model", t5_folder, *options, str(tmp_path / "page.json"))
    assert "2 questions; expected one" in message
