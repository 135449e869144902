"""`unlimiformer summarize`."""

from __future__ import annotations

import json

import pytest
from warm_cli import error_line, run


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, in which drafts are kept."""
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_summary_with_its_passages(llama_folder, book_file, cache):
    command = ("summarize", book_file, "--model", llama_folder, "--words", "30", "--method", "hierarchical")
    lines = run(*command).stdout.decode()
    content = json.loads(run(*command, "--json").stdout)
    sentences = [sentence for chapter in content["chapters"] for sentence in chapter["sentences"]]
    assert content["summary"] == " ".join(sentence["text"] for sentence in sentences)
    assert all(f"{sentence['text']} [{number}]" in lines for number, sentence in enumerate(sentences, 1))
    assert "[1] at " in lines
    assert len(list(cache.glob("summaries/*/written.jsonl"))) == 1


def test_standard_input_memories_and_encoder_decoders(llama_folder, t5_folder, book_file, book, tmp_path):
    command = ("--model", llama_folder, "--words", "30", "--json")
    memory = str(tmp_path / "book.memory")
    run("index", book_file, "-o", memory, "--model", llama_folder)
    summaries = [
        json.loads(done.stdout)["summary"]
        for done in (
            run("summarize", book_file, *command),
            run("summarize", "-", *command, stdin=book.encode()),
            run("summarize", memory, *command),
        )
    ]
    assert summaries[0] == summaries[1] == summaries[2]
    direct = json.loads(run("summarize", book_file, "--model", t5_folder, "--words", "5", "--json").stdout)
    assert direct["method"] == "direct"
    assert direct["summary"]


def test_wrong_settings(llama_folder, book_file):
    assert "expected one of: direct" in error_line("summarize", book_file, "--model", llama_folder, "--method", "x")
    assert "--words is 0" in error_line("summarize", book_file, "--model", llama_folder, "--words", "0")
