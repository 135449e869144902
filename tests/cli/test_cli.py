"""The command line as a user meets it: a process, its streams and its exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import save
from tiny_causal_models import tiny_decoder
from tiny_models import make
from warm_cli import unlimiformer


def run(*arguments: str, stdin: bytes | None = None, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
    done = unlimiformer(*arguments, stdin=stdin, **environment)
    assert done.returncode == code, done.stderr.decode()
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """A saved model with its tokenizer."""
    return save(tmp_path_factory.mktemp("models"), make("t5"), tokenizer)


@pytest.fixture(scope="module")
def decoder_folder(tmp_path_factory, tokenizer):
    """A saved decoder-only model with its tokenizer."""
    return save(tmp_path_factory.mktemp("models"), tiny_decoder("llama"), tokenizer)


@pytest.fixture
def file(tmp_path, book):
    path = tmp_path / "book.txt"
    path.write_text(book)
    return str(path)


def test_families_come_from_the_registry():
    rows = json.loads(run("families", "--json").stdout)
    kinds = [row["kind"] for row in rows]
    assert (kinds.count("encoder–decoder"), kinds.count("decoder-only")) == (25, 13)
    assert all(set(row) == {"family", "kind", "status"} and row["status"] == "supported" for row in rows)


def test_generate_streams_text_and_closes_with_figures(folder, file):
    done = run("generate", file, "--model", folder, "--max-new-tokens", "5", "--min-new-tokens", "5", "--top-k", "9")
    assert len(done.stdout.split()) == 5
    assert all(word.startswith((b"w", b"<")) for word in done.stdout.split())
    line = b" ".join(done.stderr.split()).decode()
    assert "202 source tokens in 12 windows" in line
    assert "5 tokens at" in line and "ms each" in line and "memory" in line


def test_generate_reads_standard_input_and_prints_json(folder, file, book):
    options = ("--model", folder, "--max-new-tokens", "4", "--min-new-tokens", "4", "--json")
    by_file = json.loads(run("generate", file, *options).stdout)
    by_stdin = json.loads(run("generate", "-", *options, stdin=book.encode()).stdout)
    assert by_file["text"] == by_stdin["text"]
    assert by_file["source_tokens"] == 202 and by_file["new_tokens"] == 4 and by_file["memory_bytes"] == 202 * 32 * 4
    beams = json.loads(run("generate", file, *options, "--num-beams", "3", "--dtype", "int8").stdout)
    assert beams["memory_bytes"] == 202 * 36


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{missing}", "--model", "{model}"], "missing.txt does not exist; give the path of a text file"),
        (["{empty}", "--model", "{model}"], "empty.txt is empty; expected a text"),
        (["{latin}", "--model", "{model}"], "latin.txt is not UTF-8 (byte 3 is 0xe9)"),
        (["{file}", "--model", "{model}", "--top-k", "0"], "top_k is 0; expected a whole number of at least 1"),
        (["{file}", "--model", "{model}", "--overlap", "1"], "overlap is 1.0; expected 0 <= overlap < 1"),
        (["{file}", "--model", "{model}", "--overlap", "-0.2"], "overlap is -0.2"),
        (["{file}", "--model", "{model}", "--layers", "a"], "--layers is 'a'; expected numbers with commas"),
        (["{file}", "--model", "{model}", "--layers", "7"], "layers is [7]; the decoder has 2"),
        (["{file}", "--model", "{model}", "--dtype", "int3"], "dtype is 'int3'; expected one of"),
        (["{file}", "--model", "{model}", "--prefix", "w1 " * 99], "the prefix has 100 tokens and the window 32"),
        (["{file}", "--model", "{model}", "--max-new-tokens", "0"], "--max-new-tokens is 0; expected at least 1"),
        (["{file}", "--model", "{model}", "--num-beams", "0"], "--num-beams is 0"),
        (["{file}", "--model", "{model}", "--sample", "--temperature", "0"], "--temperature is 0.0"),
        (["{file}", "--model", "{nothing}"], "has no config.json"),
        (["{file}", "--model", "nobody/nothing"], "cannot load 'nobody/nothing'"),
        (["{file}", "--model", "{model}", "--device", "tpu9"], "device is 'tpu9' and cannot be used"),
        (["{file}", "--model", "{nan}"], "has NaN or infinite numbers"),
        (["{file}", "--model", "{misfit}"], "expected the model's own tokenizer"),
    ],
    ids=lambda value: None if isinstance(value, list) else value[:40],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, file, tmp_path, tokenizer, arguments, words):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "nothing").mkdir()
    places = {"file": file, "model": folder, "missing": "missing.txt", "nothing": str(tmp_path / "nothing")}
    places |= {name: str(tmp_path / f"{name}.txt") for name in ("empty", "latin")}
    for name in ("nan", "misfit"):
        places[name] = str(tmp_path / name)
        if f"{{{name}}}" in arguments:
            model = make("t5")
            if name == "nan":
                model.shared.weight.data[3, 3] = float("nan")
            else:
                model.resize_token_embeddings(40)
            model.save_pretrained(tmp_path / name)
            tokenizer.save_pretrained(tmp_path / name)
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    done = run("generate", *(a.format(**places) for a in arguments), code=2)
    message = done.stderr.decode()
    assert message.startswith("error: ") and message.count("\n") == 1
    assert words in message
    assert "Traceback" not in message
    assert not done.stdout
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == before


def test_standard_input_that_is_not_utf8(folder):
    done = run("generate", "-", "--model", folder, stdin=b"caf\xe9", code=2)
    assert b"standard input is not UTF-8" in done.stderr


def test_index_then_generate_from_the_memory(folder, file, tmp_path):
    memory = str(tmp_path / "book.memory")
    told = json.loads(run("index", file, "-o", memory, "--model", folder, "--json").stdout)
    assert told["tokens"] == 202 and told["windows_kept"] == 0 and told["search"] == "exact, int8"
    options = ("--model", folder, "--max-new-tokens", "4", "--min-new-tokens", "4", "--json")
    by_memory = json.loads(run("generate", memory, *options).stdout)
    by_file = json.loads(run("generate", file, *options, "--dtype", "int8").stdout)
    assert by_memory["text"] == by_file["text"] and by_memory["memory_bytes"] == 202 * 36
    again = json.loads(run("index", file, "-o", memory, "--model", folder, "--json").stdout)
    assert again["windows_kept"] == again["windows"] == told["windows"]
    appended = json.loads(run("index", file, "-o", memory, "--model", folder, "--append", "--json").stdout)
    assert appended["tokens"] == 402 and appended["windows_kept"] > 0
    assert (
        b"made with another text"
        in run("index", "-", "-o", memory, "--model", folder, stdin=b"w9 " * 99, code=2).stderr
    )
    run("index", "-", "-o", memory, "--model", folder, "--overwrite", stdin=b"w9 " * 99)
    shown = run("index", "-", "-o", memory, "--model", folder, "--store", "cells", stdin=b"w9 " * 99).stderr
    assert b"cells was tried and left" in shown
    assert b"101 tokens in" in run("plan", memory, "--model", folder).stdout
    anew = str(tmp_path / "anew.memory")
    told = json.loads(run("index", memory, "-o", anew, "--model", folder, "--dtype", "float32", "--json").stdout)
    assert told["tokens"] == 101 and told["search"] == "exact, float32"
    assert (
        b"not a memory to append to" in run("index", file, "-o", "none", "--model", folder, "--append", code=2).stderr
    )


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_index_says_so_and_goes_on(folder, tmp_path, signal_name):
    text, memory = tmp_path / "long.txt", tmp_path / "m"
    text.write_text("w1 w2 w3 w4 w5 w6 w7 " * 3000)
    command = [sys.executable, "-m", "unlimiformer", "index", str(text), "-o", str(memory), "--model", folder, "--json"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    journal = memory / "partial" / "journal.json"
    for _ in range(6000):
        if journal.exists() and json.loads(journal.read_text())["done"] > 8:
            break
        time.sleep(0.02)
    process.send_signal(getattr(signal, signal_name))
    _, said = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    if signal_name == "SIGINT":
        assert process.returncode == 130 and b"the same command goes on" in said
    assert json.loads(run(*command[3:]).stdout)["windows_kept"] > 8


def test_plan_tells_what_then_happens(folder, file):
    plan = json.loads(run("plan", file, "--model", folder, "--json").stdout)
    made = json.loads(run("generate", file, "--model", folder, "--dtype", "int8", "--json").stdout)
    assert (plan["tokens"], plan["windows"]) == (made["source_tokens"], made["windows"])
    stores = {store["dtype"]: store for store in plan["stores"]}
    assert stores["int8"]["memory_bytes"] == made["memory_bytes"]
    assert set(stores) == {"float32", "bfloat16", "int8"} and plan["encode_seconds"] > 0
    assert b"202 tokens in" in run("plan", file, "--model", folder).stdout


def test_bench_search_measures_every_store(folder, file, tmp_path):
    out = tmp_path / "search.json"
    run("bench", "search", "--model", folder, "--text", file, "--top-k", "8", "--json", str(out))
    rows = json.loads(out.read_text())["rows"]
    assert [row["store"].split(",")[0] for row in rows] == ["exact", "exact", "exact", "cells", "faiss"]
    assert rows[0]["recall"] == 1 and rows[0]["mass_recall"] == pytest.approx(1)
    assert all(row["mass_recall"] > 0.9 for row in rows)


def test_bench_decode_writes_rows_and_a_picture(folder, file, tmp_path):
    """The shape of the result, on lengths that take seconds."""
    out = tmp_path / "decode.json"
    real = ("--model", folder, "--text", file)
    lengths = ("--lengths", "64,300", "--new-tokens", "2", "--repeats", "1", "--top-k", "32")
    run("bench", "decode", *lengths, *real, "--json", str(out))
    rows = json.loads(out.read_text())["rows"]
    figures = {"ms_per_token", "ratio_to_truncated", "bytes_per_source_token", "mass_recall"}
    assert set(rows[0]) == {"method", "dtype", "tokens"} | figures
    methods = {(row["method"], row["dtype"]) for row in rows if row["tokens"] == 300}
    others = {("truncated", "float32"), ("retrieve-then-project", "float32"), ("all-layers-kv", "float32")}
    assert methods == others | {("ours", dtype) for dtype in ("float32", "bfloat16", "int8")}
    assert all(row["bytes_per_source_token"] <= 1.1 * 768 * 4 for row in rows if row["method"] == "ours")
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    run("bench", "decode", "--lengths", "0", code=2)


DECODER = ("--window", "64", "--top-k", "64", "--max-new-tokens", "6")


def test_ask_answers_several_questions_from_one_reading(decoder_folder, file):
    done = run("ask", file, "w3 w4", "w8", "--model", decoder_folder, *DECODER)
    lines = done.stdout.decode().splitlines()
    assert [line for line in lines if line in ("w3 w4", "w8")] == ["w3 w4", "w8"]
    assert sum(" in: …" in line for line in lines) == 2
    told = json.loads(run("ask", file, "w3 w4", "w8", "--model", decoder_folder, *DECODER, "--json").stdout)
    assert [answer["question"] for answer in told["answers"]] == ["w3 w4", "w8"]
    text = Path(file).read_text()
    for answer in told["answers"]:
        (passage,) = answer["passages"]
        assert text[passage["start"] : passage["end"]] == passage["text"]


def test_ask_takes_a_memory_and_standard_input(decoder_folder, file, book, tmp_path):
    options = ("--model", decoder_folder, *DECODER, "--json")
    memory = str(tmp_path / "book.memory")
    run("index", file, "-o", memory, "--model", decoder_folder, "--window", "64", "--top-k", "64")
    by_memory = json.loads(run("ask", memory, "w3", "--model", decoder_folder, *DECODER[2:], "--json").stdout)
    by_file = json.loads(run("ask", file, "w3", *options).stdout)
    by_stdin = json.loads(run("ask", "-", "w3", *options, stdin=book.encode()).stdout)
    answers = [told["answers"][0]["answer"] for told in (by_memory, by_file, by_stdin)]
    assert answers[0] == answers[1] == answers[2]


def test_ask_of_an_encoder_decoder(folder, file):
    told = json.loads(run("ask", file, "w3", "--model", folder, "--max-new-tokens", "5", "--json").stdout)
    assert told["answers"][0]["question"] == "w3" and told["answers"][0]["answer"]


def test_ask_refuses_what_it_cannot_do(decoder_folder, file, tmp_path):
    assert b"some words" in run("ask", file, " ", "--model", decoder_folder, code=2).stderr
    assert b"selection" in run("ask", file, "w1", "--model", decoder_folder, "--selection", "x", code=2).stderr
    memory = str(tmp_path / "book.memory")
    run("index", file, "-o", memory, "--model", decoder_folder, "--window", "64", "--top-k", "64")
    done = run("ask", memory, "w1", "--model", decoder_folder, "--selection", "blocks", code=2)
    assert b"selection reread instead of blocks" in b" ".join(done.stderr.split())


def test_generate_of_a_decoder_only_model(decoder_folder, file):
    done = run("generate", file, "--model", decoder_folder, "--prompt", "w5", *DECODER)
    assert all(word.startswith(b"w") for word in done.stdout.split())
    assert b"6 tokens at" in b" ".join(done.stderr.split())
    assert b"no prompt" in run("generate", file, "--model", decoder_folder, *DECODER, code=2).stderr


def test_plan_of_a_decoder_only_model(decoder_folder, file):
    plan = json.loads(run("plan", file, "--model", decoder_folder, "--window", "64", "--top-k", "64", "--json").stdout)
    assert plan["tokens"] >= 200 and [store["dtype"] for store in plan["stores"]] == ["float32", "bfloat16"]


def test_provenance_is_written_as_json_or_as_a_page(folder, decoder_folder, file, tmp_path):
    options = ("--max-new-tokens", "4", "--provenance")
    run("generate", file, "--model", folder, "--top-k", "9", "--num-beams", "2", *options, str(tmp_path / "a.json"))
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["tokens"] and told["passages"] and len(told["histogram"]) == 100
    run("ask", file, "w1", "--model", decoder_folder, *options, str(tmp_path / "b.html"))
    assert "<!doctype html>" in (tmp_path / "b.html").read_text()
    wrong = run("ask", file, "w1", "--model", folder, *options, str(tmp_path / "c.txt"), code=2)
    assert b"expected a name that ends with .json or .html" in wrong.stderr
    many = run("ask", file, "w1", "w2", "--model", folder, *options, str(tmp_path / "c.json"), code=2)
    assert b"2 questions; expected one" in many.stderr
    nowhere = run("generate", file, "--model", folder, *options, str(tmp_path / "no" / "c.json"), code=2)
    assert b"there is no folder" in nowhere.stderr
