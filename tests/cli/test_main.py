"""The command `unlimiformer` itself: bad input is reported in one line and with exit code 2."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import save
from tiny_models import make
from warm_cli import run

import unlimiformer


def test_version():
    assert run("--version").stdout.decode().strip() == unlimiformer.__version__


@pytest.fixture
def paths(tmp_path, t5_folder, book_file):
    """Good and bad files, and the model, by name."""
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "noise.txt").write_bytes(bytes(range(256)))
    (tmp_path / "empty_folder").mkdir()
    paths = {"file": book_file, "model": t5_folder, "missing": "missing.txt"}
    return paths | {name: str(tmp_path / name) for name in ("empty.txt", "noise.txt", "empty_folder")}


def _assert_one_line_error(tmp_path, arguments, message):
    """The command ends with one line and exit code 2, and writes no file."""
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    done = run("generate", *arguments, code=2)
    error = done.stderr.decode()
    assert error.startswith("error: ") and error.count("\n") == 1
    assert message in error
    assert "Traceback" not in error
    assert not done.stdout
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("missing", "missing.txt does not exist; give the path of a document"),
        ("empty.txt", "empty.txt is empty; expected a text"),
        ("noise.txt", "noise.txt is not a text"),
    ],
)
def test_bad_files(tmp_path, paths, file, message):
    _assert_one_line_error(tmp_path, [paths[file], "--model", paths["model"]], message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top-k", "0"], "top_k is 0; expected a whole number of at least 1"),
        (["--overlap", "1"], "overlap is 1.0; expected 0 <= overlap < 1"),
        (["--overlap", "-0.2"], "overlap is -0.2"),
        (["--layers", "a"], "--layers is 'a'; expected numbers with commas"),
        (["--layers", "7"], "layers is [7]; the decoder has 2"),
        (["--dtype", "int3"], "dtype is 'int3'; expected one of"),
        (["--prefix", "w1 " * 99], "the prefix has 100 tokens and the window 32"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0; expected at least 1"),
        (["--num-beams", "0"], "--num-beams is 0"),
        (["--temperature", "-0.5"], "--temperature is -0.5; expected at least 0"),
        (["--device", "tpu9"], "device is 'tpu9' and cannot be used"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_options(tmp_path, paths, options, message):
    _assert_one_line_error(tmp_path, [paths["file"], "--model", paths["model"], *options], message)


def test_models_that_cannot_be_loaded(tmp_path, paths):
    _assert_one_line_error(tmp_path, [paths["file"], "--model", paths["empty_folder"]], "has no config.json")
    _assert_one_line_error(tmp_path, [paths["file"], "--model", "nobody/nothing"], "cannot load 'nobody/nothing'")


def test_a_model_with_nan_weights(tmp_path, paths, tokenizer):
    model = make("t5")
    model.shared.weight.data[3, 3] = float("nan")
    folder = save(tmp_path / "nan", model, tokenizer)
    _assert_one_line_error(tmp_path, [paths["file"], "--model", folder], "has NaN or infinite numbers")


@pytest.mark.parametrize(
    "arguments",
    [
        ["ask", "w3"],
        ["ask", "w3", "--json"],
        ["generate", "--max-new-tokens", "3"],
        ["generate", "--max-new-tokens", "3", "--json"],
        ["plan", "--json"],
    ],
    ids=" ".join,
)
def test_an_output_that_cannot_be_written(paths, arguments):
    command, *options = arguments
    done = run(command, paths["file"], *options, "--model", paths["model"], code=2, stdout="/dev/full")
    error = done.stderr.decode()
    assert "Traceback" not in error
    assert error.splitlines()[-1].startswith(
        "error: cannot write the output (No space left on device); free some space"
    )


@pytest.mark.parametrize("arguments", [["models"], ["models", "--json"], ["--help"], ["texts", "--json"]])
def test_an_output_that_cannot_be_written_at_the_exit(arguments):
    """In a process of its own, which flushes its output once more when it ends."""
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "unlimiformer", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write the output") and done.stderr.count("\n") == 1


def test_a_tokenizer_of_another_model(tmp_path, paths, tokenizer):
    model = make("t5")
    model.resize_token_embeddings(40)
    folder = save(tmp_path / "small", model, tokenizer)
    _assert_one_line_error(tmp_path, [paths["file"], "--model", folder], "expected the model's own tokenizer")
