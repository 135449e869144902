"""Real workers: processes and Ray actors with a tiny model; some are killed on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import make_book, make_tokenizer, save
from fsspec.implementations.memory import MemoryFileSystem
from tiny_models import make

from unlimiformer import Memory, Unlimiformer
from unlimiformer.batch import Job, find_documents, run
from unlimiformer.batch.ray import RayPool
from unlimiformer.batch.worker import Worker, folder_name
from unlimiformer.errors import UnlimiformerError
from unlimiformer.hub.loading import load
from unlimiformer.memory import remote
from unlimiformer.qa import DocumentQA, QuestionFormat

GENERATION = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1}
QUESTIONS = ("w3 w4", "w5 w6")
CONFIG = {"top_k": 9}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models"), make("t5"), make_tokenizer())


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    path = tmp_path_factory.mktemp("shelf") / "in.jsonl"
    words = make_book(3000).split()
    rows = [{"id": f"book {n}", "document": " ".join(words[n : 40 + n * 61])} for n in range(24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"document": ""}\n')
    return path


@pytest.fixture(scope="module")
def expected(folder, shelf):
    """What a plain loop answers."""
    with Unlimiformer(*load(folder), **CONFIG) as wrapped:
        return {
            document.id: [DocumentQA(wrapped, document.source()).ask(q, **GENERATION).text for q in QUESTIONS]
            for document in find_documents(shelf)
            if document.error is None
        }


def _work(folder, **others):
    return Job(**{"task": "ask", "model": folder, "config": CONFIG, "generation": GENERATION, **others})


def _rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def _check(rows, expected):
    """Every document once, with the plain loop's answers."""
    assert sorted(row["id"] for row in rows) == sorted([*expected, "line 25"])
    for row in rows:
        if "error" in row:
            assert row["id"] == "line 25" and "document is empty" in row["error"]
        else:
            assert [each["answer"] for each in row["answers"]] == expected[row["id"]]


@pytest.mark.parametrize("place", ["window", "decoder"])
@pytest.mark.parametrize("batch", [1, 5])
def test_a_desk_answers_as_a_plain_loop(folder, shelf, monkeypatch, place, batch):
    monkeypatch.setattr(QuestionFormat, "for_model", lambda name: QuestionFormat(place))
    documents = [document for document in find_documents(shelf) if document.error is None][:10]
    desk = Worker(_work(folder, questions=QUESTIONS))
    rows = [row for start in range(0, 10, batch) for row in desk.do(documents[start : start + batch])]
    desk.close()
    with Unlimiformer(*load(folder), **CONFIG) as wrapped:
        for document, row in zip(documents, rows, strict=True):
            talk = DocumentQA(wrapped, document.source(), QuestionFormat(place))
            replies = [talk.ask(question, provenance=True, **GENERATION) for question in QUESTIONS]
            assert [each["answer"] for each in row["answers"]] == [reply.text for reply in replies]
            for told, reply in zip(row["answers"], replies, strict=True):
                (passage,) = reply.output.provenance.passages(1)
                assert told["passages"][0]["start"] == passage.start and told["question"] in QUESTIONS
            assert row["tokens"] == len(reply.output.memory) and row["id"] == document.id


def test_one_that_fails_keeps_nobody_back(folder, tmp_path):
    (tmp_path / "a.txt").write_text("w1 w2 w3")
    (tmp_path / "b.txt").write_bytes(b"w1 \xff")
    (tmp_path / "c.txt").write_text("w4 w5")
    desk = Worker(_work(folder, task="summarize"))
    rows = desk.do(find_documents(tmp_path))
    desk.close()
    assert "not UTF-8" in rows[1]["error"] and all(isinstance(rows[n]["summary"], str) for n in (0, 2))


@pytest.mark.parametrize("remote", [False, True])
def test_memories_are_made_and_asked(folder, shelf, tmp_path, monkeypatch, remote):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))
    place = f"file://{tmp_path}/shared" if remote else str(tmp_path / "out.memories")
    settings = {"window": 24, "dtype": "float32"}
    desk = Worker(
        _work(folder, task="index", generation={}, config=settings, memories=place, relative_to=str(tmp_path))
    )
    documents = find_documents(shelf)[:3]
    rows = [row for document in documents for row in desk.do([document])]
    desk.close()
    assert all(row["memory"].startswith("file://" if remote else "out.memories/book_") for row in rows)
    index = tmp_path / "out.jsonl"
    index.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = find_documents(index)
    asked = Worker(_work(folder, questions=("w3",)))  # the window is that of the memories
    told = asked.do(found)
    asked.close()
    with Unlimiformer(*load(folder), **CONFIG, window=24) as wrapped:
        for document, row in zip(found, told, strict=True):
            memory = Memory.load(document.memory)
            assert memory.text == find_documents(shelf)[int(document.id[-1])].source()
            assert row["answers"][0]["answer"] == DocumentQA(wrapped, memory).ask("w3", **GENERATION).text
    assert not list((tmp_path / "cache" / "uploads").glob("*"))
    again = Worker(_work(folder, task="index", generation={}, config=settings, memories=place))
    assert again.do([documents[0]])[0]["tokens"] == rows[0]["tokens"]  # what is there is replaced, or is the same
    assert "a memory already" in again.do([found[0]])[0]["error"]
    again.close()


def test_half_a_copy_is_no_memory_and_is_mended(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(MemoryFileSystem, "makedirs", lambda *_, **__: None)  # as object stores, which have no folders
    with Unlimiformer(*load(folder)) as wrapped:
        wrapped.index(make_book(90)).save(tmp_path / "memory")
    url, put = "memory://bucket/m", MemoryFileSystem.put_file

    def cut_off(self, source, target, **others):
        if "states" in target:
            self.pipe_file(target, b"half")
            raise OSError("the line is dead")
        put(self, source, target, **others)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", cut_off)
        with pytest.raises(UnlimiformerError, match="cannot write memory://bucket/m"):
            remote.publish(tmp_path / "memory", url)
    with pytest.raises(UnlimiformerError, match="is not a memory"):
        Memory.load(url)
    remote.publish(tmp_path / "memory", url)
    assert Memory.load(url).text == make_book(90)
    with Unlimiformer(*load(folder)) as wrapped:
        wrapped.index(make_book(120)).save(tmp_path / "other")
    remote.publish(tmp_path / "other", url)
    assert Memory.load(url).text == make_book(120)
    files = MemoryFileSystem().ls("/bucket/m", detail=False)
    assert len(files) == len(list((tmp_path / "other").glob("*.bin"))) + 1  # nothing of the older one is left
    (states,) = [path for path in files if "states" in path]
    MemoryFileSystem().pipe_file(states, b"short")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(UnlimiformerError, match="the copy of memory://bucket/m is damaged"):
        Memory.load(url)


def test_what_is_not_at_a_url_is_named(tmp_path):
    with pytest.raises(UnlimiformerError, match="is not a memory"):
        Memory.load(f"file://{tmp_path}/nothing")
    with pytest.raises(UnlimiformerError, match="expected a folder, or a URL that fsspec knows"):
        Memory.load("nowhere://x")


def test_what_changed_meanwhile_is_left_to_the_next_run(folder, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"document": "w1 w2"}\n')
    documents = find_documents(path)
    path.write_text('{"document": "w3"}\n{"document": "w1 w2"}\n')
    desk = Worker(_work(folder, questions=("w3",)))
    (row,) = desk.do(documents)
    assert row["digest"] == "" and "run the same command again" in row["error"]
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(desk, "_rows", lambda _: (_ for _ in ()).throw(RuntimeError("CUDA error: device-side assert")))
    with pytest.raises(RuntimeError):  # such a worker does nothing right any more
        desk.do(documents)
    monkeypatch.undo()
    desk.close()


def test_names_of_folders_are_safe_and_different():
    names = [folder_name(each, {"top_k": 1}) for each in ("../../x", "..", "a/b", "a_b", "A" * 300, "", "ü")]
    assert len({*names, folder_name("..", {"top_k": 2})}) == len(names) + 1
    assert all("/" not in name and not name.startswith(".") and len(name) < 80 for name in names)


def test_a_killed_worker_is_replaced(folder, shelf, expected, tmp_path):
    out, killed, said = tmp_path / "out.jsonl", [], []

    def kill(status):
        if status.done >= 3 and not killed:
            killed.append(multiprocessing.active_children()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    work = _work(folder, questions=QUESTIONS, batch_size=2)
    summary = run(find_documents(shelf), out, work, workers=1, log=said.append, progress=kill)
    assert killed and summary.deaths == 1 and any("SIGKILL" in line for line in said)
    assert summary.failed == 1 and not multiprocessing.active_children()
    _check(_rows(out), expected)


def test_a_killed_run_takes_its_workers_along_and_goes_on(folder, shelf, expected, tmp_path):
    out = tmp_path / "out.jsonl"
    asked = [part for question in QUESTIONS for part in ("--question", question)]
    command = [sys.executable, "-m", "unlimiformer", "run", str(shelf), "-o", str(out), "--task", "ask", *asked]
    command += ["--model", folder, "--top-k", "9", "--max-new-tokens", "6", "--workers", "1", "--batch-size", "1"]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (out.exists() and out.read_bytes().count(b"\n") >= 4):
        time.sleep(0.005)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(first.pid)], capture_output=True, text=True).stdout
    first.kill()
    first.wait()
    before = out.read_bytes().count(b"\n")
    assert 4 <= before < 25
    for pid in map(int, children.split()):
        while time.monotonic() < deadline and _lives(pid):
            time.sleep(0.01)
        assert not _lives(pid)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert done.returncode == 1 and told["failed"] == 1 and told["done_before"] >= before and told["done"] == 25
    assert "failed: line 25" not in done.stderr  # that was said before
    _check(_rows(out), expected)


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ray_does_every_document_once_though_a_worker_is_killed(folder, shelf, expected, tmp_path, monkeypatch):
    out, pids, killed = tmp_path / "out.jsonl", [], []
    heard = RayPool._heard

    def note(self, call, number):
        event = heard(self, call, number)
        pids.extend([event.about["pid"]] if hasattr(event, "about") else [])
        return event

    def kill(status):
        if status.done >= 3 + 5 * len(killed) and len(killed) < min(2, len(pids)):  # one, and then the other
            killed.append(pids[len(killed)])
            os.kill(killed[-1], signal.SIGKILL)

    monkeypatch.setattr(RayPool, "_heard", note)
    work = _work(folder, questions=QUESTIONS, batch_size=1)
    summary = run(find_documents(shelf), out, work, workers=2, ray="local", progress=kill)
    assert summary.deaths == 2 and summary.workers == 2 and len(set(pids)) > 2 and set(killed) == set(pids[:2])
    _check(_rows(out), expected)


def test_a_model_that_is_none_ends_the_run(shelf, tmp_path):
    with pytest.raises(UnlimiformerError, match=r"has no config\.json"):
        run(find_documents(shelf), tmp_path / "out.jsonl", _work(str(tmp_path), questions=QUESTIONS), workers=1)
    assert not multiprocessing.active_children()
