"""`unlimiformer chat`."""

from __future__ import annotations

from warm_cli import error_line, run


def test_questions_are_lines_of_standard_input(llama_folder, book_file):
    done = run(
        "chat", book_file, "--model", llama_folder, "--passages", "1", stdin=b"What is w5?\nWhat did it do?\n\nno"
    )
    lines = done.stdout.decode().strip().split("\n")
    assert [line for line in lines if line.startswith("> ")] == ["> What is w5?", "> What did it do?"]
    assert sum(line.startswith("    at ") for line in lines) == 2


def test_the_document_cannot_be_standard_input(llama_folder):
    assert "questions are read" in error_line("chat", "-", "--model", llama_folder, stdin=b"w1")
