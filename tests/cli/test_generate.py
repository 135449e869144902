"""`unlimiformer generate`."""

from __future__ import annotations

import json

from warm_cli import error_line, run

LLAMA = ("--window", "64", "--top-k", "64", "--max-new-tokens", "6")


def test_text_is_streamed_and_figures_follow(t5_folder, book_file):
    options = ("--max-new-tokens", "5", "--min-new-tokens", "5", "--top-k", "9")
    done = run("generate", book_file, "--model", t5_folder, *options)
    assert len(done.stdout.split()) == 5
    assert all(word.startswith((b"w", b"<")) for word in done.stdout.split())
    line = b" ".join(done.stderr.split()).decode()
    assert "202 source tokens in 12 windows" in line
    assert "5 tokens at" in line and "ms each" in line and "memory" in line


def test_standard_input_and_json(t5_folder, book_file, book):
    options = ("--model", t5_folder, "--max-new-tokens", "4", "--min-new-tokens", "4", "--json")
    from_file = json.loads(run("generate", book_file, *options).stdout)
    from_stdin = json.loads(run("generate", "-", *options, stdin=book.encode()).stdout)
    assert from_file["text"] == from_stdin["text"]
    assert from_file["source_tokens"] == 202 and from_file["new_tokens"] == 4
    assert from_file["memory_bytes"] == 202 * 32 * 4
    beams = json.loads(run("generate", book_file, *options, "--num-beams", "3", "--dtype", "int8").stdout)
    assert beams["memory_bytes"] == 202 * 36


def test_standard_input_that_is_no_text(t5_folder):
    noise = bytes(range(256))
    assert "standard input is not a text" in error_line("generate", "-", "--model", t5_folder, stdin=noise)


def test_a_decoder_only_model(llama_folder, book_file):
    done = run("generate", book_file, "--model", llama_folder, "--prompt", "w5", *LLAMA)
    assert all(word.startswith(b"w") for word in done.stdout.split())
    assert b"6 tokens at" in b" ".join(done.stderr.split())
    summary = run("generate", book_file, "--model", llama_folder, *LLAMA).stdout
    asked = run("generate", book_file, "--model", llama_folder, "--prompt", "Summarize the text.", *LLAMA).stdout
    assert summary == asked != done.stdout


def test_provenance_as_json(t5_folder, book_file, tmp_path):
    options = ("--model", t5_folder, "--max-new-tokens", "4", "--top-k", "9")
    path = tmp_path / "provenance.json"
    run("generate", book_file, *options, "--num-beams", "2", "--provenance", str(path))
    fields = json.loads(path.read_text())
    assert fields["tokens"] and fields["passages"] and len(fields["histogram"]) == 100
    missing_folder = str(tmp_path / "no" / "c.json")
    assert "there is no folder" in error_line("generate", book_file, *options, "--provenance", missing_folder)
