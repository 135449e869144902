"""`unlimiformer index`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from memory_helpers import windows_recorded
from warm_cli import error_line, run


def _index(source, memory, model, *options, **keywords):
    """Index a source and return the figures."""
    return json.loads(run("index", source, "-o", memory, "--model", model, "--json", *options, **keywords).stdout)


@pytest.fixture
def memory(tmp_path):
    """Path of a memory that does not exist yet."""
    return str(tmp_path / "book.memory")


def test_generate_from_a_memory(t5_folder, book_file, memory):
    figures = _index(book_file, memory, t5_folder)
    assert figures["tokens"] == 202 and figures["windows_kept"] == 0 and figures["search"] == "exact, int8"
    options = ("--model", t5_folder, "--max-new-tokens", "4", "--min-new-tokens", "4", "--json")
    from_memory = json.loads(run("generate", memory, *options).stdout)
    from_file = json.loads(run("generate", book_file, *options, "--dtype", "int8").stdout)
    assert from_memory["text"] == from_file["text"] and from_memory["memory_bytes"] == 202 * 36


def test_index_again_and_append(t5_folder, book_file, memory):
    figures = _index(book_file, memory, t5_folder)
    again = _index(book_file, memory, t5_folder)
    assert again["windows_kept"] == again["windows"] == figures["windows"]
    appended = _index(book_file, memory, t5_folder, "--append")
    assert appended["tokens"] == 402 and appended["windows_kept"] > 0
    message = error_line("index", book_file, "-o", "none", "--model", t5_folder, "--append")
    assert "not a memory to append to" in message


def test_overwrite(t5_folder, book_file, memory):
    command = ("index", "-", "-o", memory, "--model", t5_folder)
    _index(book_file, memory, t5_folder)
    assert "made with another text" in error_line(*command, stdin=b"w9 " * 99)
    run(*command, "--overwrite", stdin=b"w9 " * 99)
    assert b"101 tokens in" in run("plan", memory, "--model", t5_folder).stdout


@pytest.mark.parametrize("store", ["ivf", "cells"])
def test_a_store_that_does_not_pay_is_not_used(t5_folder, book_file, memory, store):
    done = run("index", book_file, "-o", memory, "--model", t5_folder, "--store", store)
    assert b"exact search is used instead of ivf" in b" ".join(done.stderr.split())


def test_a_memory_is_indexed_anew_with_other_settings(t5_folder, book_file, memory, tmp_path):
    _index(book_file, memory, t5_folder)
    figures = _index(memory, str(tmp_path / "new.memory"), t5_folder, "--dtype", "float32")
    assert figures["tokens"] == 202 and figures["search"] == "exact, float32"


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_continues(t5_folder, memory, tmp_path, signal_name):
    text = tmp_path / "long.txt"
    text.write_text("w1 w2 w3 w4 w5 w6 w7 " * 3000)
    arguments = ("index", str(text), "-o", memory, "--model", t5_folder, "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "unlimiformer", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    for _ in range(6000):
        if windows_recorded(Path(memory)) > 8:
            break
        time.sleep(0.02)
    process.send_signal(getattr(signal, signal_name))
    _, stderr = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    if signal_name == "SIGINT":
        assert process.returncode == 130 and b"the same command continues" in stderr
    assert json.loads(run(*arguments).stdout)["windows_kept"] > 8
