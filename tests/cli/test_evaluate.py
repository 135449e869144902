"""`evaluate`, `compare`, `tasks` and `figures` from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from conftest import make_book, make_tokenizer, save
from tiny_models import make
from warm_cli import run

from unlimiformer.utils.resumable_run import ResumableRun


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models"), make("t5"), make_tokenizer())


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    lines = [{"document": make_book(400 + n), "question": f"w{n}", "answer": f"w{n}"} for n in range(12)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def _command(folder, data, output, *more):
    options = ("--model", folder, "--data", data, "-o", str(output), "--top-k", "9", "--max-new-tokens", "8")
    return ("evaluate", *options, *more)


def test_evaluate_and_compare(folder, data, tmp_path):
    table = run(*_command(folder, data, tmp_path / "ours")).stderr.decode()
    assert "rougeL" in table and "12 items" in table
    plain = json.loads(run(*_command(folder, data, tmp_path / "plain", "--method", "truncate", "--json")).stdout)
    assert plain["settings"]["method"] == "truncate" and len(plain["scores"]["f1"]) == 12
    done = run("compare", str(tmp_path / "plain"), str(tmp_path / "ours"))
    assert (
        "12 items" in done.stderr.decode() and "ours − plain" in done.stdout.decode() and "p " in done.stdout.decode()
    )
    comparison = json.loads(run("compare", str(tmp_path / "plain"), str(tmp_path / "ours"), "--json").stdout)
    assert comparison["means"][0]["f1"]["value"] == pytest.approx(plain["metrics"]["f1"]["value"])


def test_resume_after_kill_with_the_same_numbers(folder, data, tmp_path):
    whole = json.loads(run(*_command(folder, data, tmp_path / "whole", "--json")).stdout)
    killed, predictions = tmp_path / "killed", tmp_path / "killed" / "predictions.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "unlimiformer", *_command(folder, data, killed)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (predictions.exists() and predictions.read_bytes().count(b"\n") >= 2):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert predictions.read_bytes().count(b"\n") >= 2
    resumed = json.loads(run(*_command(folder, data, killed, "--json")).stdout)
    assert (resumed["metrics"], resumed["scores"]) == (whole["metrics"], whole["scores"])
    assert len(predictions.read_text().splitlines()) == 12


def test_folder_in_use_is_refused(folder, data, tmp_path):
    output = tmp_path / "run"
    with ResumableRun.open(rows=output / "predictions.jsonl", settings=output / "settings.json", identity={}):
        done = run(*_command(folder, data, output), code=2)
    assert "another run is writing" in " ".join(done.stderr.decode().split())


def test_malformed_lines_are_reported_by_number(folder, data, tmp_path):
    with open(data, "a") as file:
        file.write("{\n")
    done = run(*_command(folder, data, tmp_path / "run"))
    assert "line 13: no JSON" in " ".join(done.stderr.decode().split())
    assert "1 malformed lines skipped" in " ".join(done.stderr.decode().split())
    strict = run(*_command(folder, data, tmp_path / "strict", "--strict"), code=2)
    assert b"line 13: no JSON" in strict.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--metrics", "bleu"), "no metric bleu; expected some of: rouge"),
        (("--task", "poems"), "no task 'poems'"),
        (("--method", "magic"), "method is 'magic'"),
        (("--seeds", "x"), "--seeds is 'x'"),
        (("--batch-size", "0"), "batch_size is 0"),
    ],
)
def test_invalid_options_are_refused(folder, data, tmp_path, options, message):
    done = run(*_command(folder, data, tmp_path / "run", *options), code=2)
    assert message in done.stderr.decode() and not (tmp_path / "run").exists()


def test_tasks_are_listed():
    tasks = json.loads(run("tasks", "--json").stdout)
    assert tasks["wikisum"]["ordered_by"] == "title" and tasks["qmsum"]["metrics"] == ["rouge"]
    assert b"booksum (version 1; abertsch/booksum-fullbooks; rouge, entities)" in run("tasks").stdout


def test_figures(folder, data, tmp_path):
    text, out = tmp_path / "book.txt", tmp_path / "figures"
    text.write_text(make_book(300))

    def rows(figure, *options):
        command = ("figures", figure, "--model", folder, "-o", str(out), "--json", *options)
        return json.loads(run(*command).stdout)["rows"]

    quality = rows("quality", "--task", "jsonl", "--data", data, "--limits", "30,all", "--metric", "f1")
    assert [row["input_limit"] for row in quality] == ["all", 30, "all"]
    assert len(rows("mass", "--text", str(text), "--k", "1,9", "--lengths", "99")) == 16
    assert rows("hits", "--text", str(text), "--max-new-tokens", "3", "--top-k", "9")[0]["tokens"] > 300
    assert len(rows("time", "--text", str(text), "--lengths", "64", "--max-new-tokens", "2")) == 3
    files = {f"{name}.{kind}" for name in ("quality", "time", "hits", "mass") for kind in ("csv", "png")}
    assert {path.name for path in out.iterdir()} == files | {"runs"}
    assert b"at least 1" in run("figures", "mass", "--model", folder, "--k", "0", code=2).stderr
