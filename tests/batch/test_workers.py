"""Real workers, as processes and as Ray actors, with a tiny model; some are killed while they work."""

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
from tiny_causal_models import tiny_decoder
from tiny_models import make

from unlimiformer import Memory, Unlimiformer
from unlimiformer.batch import Job, RunOptions, find_documents, run
from unlimiformer.batch import worker as worker_module
from unlimiformer.batch.pool import Ready
from unlimiformer.batch.ray import RayPool
from unlimiformer.batch.worker import Worker, folder_name
from unlimiformer.errors import MissingPackageError, UnlimiformerError
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
def collection(tmp_path_factory):
    """Twenty-four documents of different lengths, and an empty one."""
    path = tmp_path_factory.mktemp("collection") / "in.jsonl"
    words = make_book(3000).split()
    rows = [{"id": f"book {n}", "document": " ".join(words[n : 40 + n * 61])} for n in range(24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"document": ""}\n')
    return path


@pytest.fixture(scope="module")
def expected(folder, collection):
    """The answers of a plain loop over the documents, by id."""
    with Unlimiformer(*load(folder), **CONFIG) as wrapped:
        return {
            document.id: [DocumentQA(wrapped, document.source()).ask(q, **GENERATION).text for q in QUESTIONS]
            for document in find_documents(collection)
            if document.error is None
        }


def _job(folder, **changes):
    return Job(**{"task": "ask", "model": folder, "config": CONFIG, "generation": GENERATION, **changes})


def _read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def _check_rows(rows, expected):
    """Check that every document is there once, with the plain loop's answers."""
    assert sorted(row["id"] for row in rows) == sorted([*expected, "line 25"])
    for row in rows:
        if "error" in row:
            assert row["id"] == "line 25" and "document is empty" in row["error"]
        else:
            assert [answer["answer"] for answer in row["answers"]] == expected[row["id"]]


@pytest.mark.parametrize("place", ["window", "decoder"])
@pytest.mark.parametrize("batch", [1, 5])
def test_worker_answers_as_a_plain_loop(folder, collection, monkeypatch, place, batch):
    monkeypatch.setattr(QuestionFormat, "for_model", lambda name: QuestionFormat(place))
    documents = [document for document in find_documents(collection) if document.error is None][:10]
    worker = Worker(_job(folder, questions=QUESTIONS))
    rows = [row for start in range(0, 10, batch) for row in worker.process(documents[start : start + batch])]
    worker.close()
    with Unlimiformer(*load(folder), **CONFIG) as wrapped:
        for document, row in zip(documents, rows, strict=True):
            qa = DocumentQA(wrapped, document.source(), QuestionFormat(place))
            answers = [qa.ask(question, provenance=True, **GENERATION) for question in QUESTIONS]
            assert [fields["question"] for fields in row["answers"]] == list(QUESTIONS)
            for fields, answer in zip(row["answers"], answers, strict=True):
                (passage,) = answer.output.provenance.passages(1)
                assert fields["answer"] == answer.text and fields["passages"][0]["start"] == passage.start
            assert row["tokens"] == len(answers[-1].output.memory) and row["id"] == document.id


def test_failed_document_does_not_affect_its_batch(folder, tmp_path):
    (tmp_path / "a.txt").write_text("w1 w2 w3")
    (tmp_path / "b.txt").write_bytes(bytes(range(256)))
    (tmp_path / "c.txt").write_text("w4 w5")
    worker = Worker(_job(folder, task="summarize"))
    rows = worker.process(find_documents(tmp_path))
    worker.close()
    assert "is not a text" in rows[1]["error"] and all(isinstance(rows[n]["summary"], str) for n in (0, 2))


def test_a_decoder_only_model_summarises_without_an_index(tokenizer, tmp_path):
    folder = save(tmp_path / "llama", tiny_decoder("llama"), tokenizer)
    (tmp_path / "texts").mkdir()
    text = " ".join(f"w{number % 90}" for number in range(300))
    (tmp_path / "texts" / "a.txt").write_text(text)
    worker = Worker(Job(task="summarize", model=folder, generation={"max_new_tokens": 40}, config={}, passages=1))
    (row,) = worker.process(find_documents(tmp_path / "texts"))
    worker.close()
    with Unlimiformer(*load(folder)) as wrapped:
        expected = wrapped.summarize(text, words=31)
    assert row["summary"] == expected.text
    assert [sentence["text"] for sentence in row["sentences"]] == [sentence.text for sentence in expected.sentences]
    assert all(len(sentence["passages"]) <= 1 for sentence in row["sentences"])
    assert row["tokens"] == 300


@pytest.mark.parametrize("remote", [False, True])
def test_index_then_ask_the_memories(folder, collection, tmp_path, monkeypatch, remote):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))
    target = f"file://{tmp_path}/shared" if remote else str(tmp_path / "out.memories")
    settings = {"task": "index", "generation": {}, "config": {"window": 24, "dtype": "float32"}, "memories": target}
    indexer = Worker(_job(folder, relative_to=str(tmp_path), **settings))
    documents = find_documents(collection)[:3]
    index_rows = [row for document in documents for row in indexer.process([document])]
    indexer.close()
    assert all(row["memory"].startswith("file://" if remote else "out.memories/book_") for row in index_rows)
    index = tmp_path / "out.jsonl"
    index.write_text("".join(json.dumps(row) + "\n" for row in index_rows))
    memories = find_documents(index)
    worker = Worker(_job(folder, questions=("w3",)))  # the window is that of the memories
    rows = worker.process(memories)
    worker.close()
    with Unlimiformer(*load(folder), **CONFIG, window=24) as wrapped:
        for document, row in zip(memories, rows, strict=True):
            memory = Memory.load(document.memory)
            assert memory.text == find_documents(collection)[int(document.id[-1])].source()
            assert row["answers"][0]["answer"] == DocumentQA(wrapped, memory).ask("w3", **GENERATION).text
    assert not list((tmp_path / "cache" / "uploads").glob("*"))
    indexer = Worker(_job(folder, **settings))
    assert indexer.process([documents[0]])[0]["tokens"] == index_rows[0]["tokens"]  # an existing memory is replaced
    assert "a memory already" in indexer.process([memories[0]])[0]["error"]
    indexer.close()


def test_interrupted_upload_is_not_a_memory_and_can_be_repeated(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(MemoryFileSystem, "makedirs", lambda *_, **__: None)  # object stores have no folders
    with Unlimiformer(*load(folder)) as wrapped:
        wrapped.index(make_book(90)).save(tmp_path / "memory")
    url, put_file = "memory://bucket/m", MemoryFileSystem.put_file

    def interrupted_put(self, source, target, **options):
        if "states" in target:
            self.pipe_file(target, b"half")
            raise OSError("connection lost")
        put_file(self, source, target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", interrupted_put)
        with pytest.raises(UnlimiformerError, match="cannot write memory://bucket/m"):
            remote.upload(tmp_path / "memory", url)
    with pytest.raises(UnlimiformerError, match="is not a memory"):
        Memory.load(url)
    remote.upload(tmp_path / "memory", url)
    assert Memory.load(url).text == make_book(90)
    with Unlimiformer(*load(folder)) as wrapped:
        wrapped.index(make_book(120)).save(tmp_path / "other")
    remote.upload(tmp_path / "other", url)
    assert Memory.load(url).text == make_book(120)
    files = MemoryFileSystem().ls("/bucket/m", detail=False)
    assert len(files) == len(list((tmp_path / "other").glob("*.bin"))) + 1  # no file of the first memory is left
    (states,) = [path for path in files if "states" in path]
    MemoryFileSystem().pipe_file(states, b"short")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(UnlimiformerError, match="the copy of memory://bucket/m is damaged"):
        Memory.load(url)


def test_url_without_a_memory_is_refused(tmp_path):
    with pytest.raises(UnlimiformerError, match="is not a memory"):
        Memory.load(f"file://{tmp_path}/nothing")
    with pytest.raises(UnlimiformerError, match="expected a folder, or a URL that fsspec knows"):
        Memory.load("nowhere://x")


def test_changed_document_fails_without_a_digest(folder, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"document": "w1 w2"}\n')
    documents = find_documents(path)
    path.write_text('{"document": "w3"}\n{"document": "w1 w2"}\n')
    worker = Worker(_job(folder, questions=("w3",)))
    (row,) = worker.process(documents)
    worker.close()
    assert row["digest"] == "" and "run the same command again" in row["error"]


def test_device_error_ends_the_worker(folder, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("w1 w2")

    def fail(*arguments, **options):
        raise RuntimeError("CUDA error: device-side assert")

    worker = Worker(_job(folder, questions=("w3",)))
    monkeypatch.setattr(worker_module, "answer_batch", fail)
    with pytest.raises(RuntimeError, match="CUDA error"):  # every later document would fail too
        worker.process(find_documents(tmp_path))
    worker.close()


def test_folder_names_are_safe_and_unique():
    names = [folder_name(name, {"top_k": 1}) for name in ("../../x", "..", "a/b", "a_b", "A" * 300, "", "ü")]
    assert len({*names, folder_name("..", {"top_k": 2})}) == len(names) + 1
    assert all("/" not in name and not name.startswith(".") and len(name) < 80 for name in names)


def test_killed_worker_is_replaced(folder, collection, expected, tmp_path):
    output, killed, log = tmp_path / "out.jsonl", [], []

    def kill(status):
        if status.done >= 3 and not killed:
            killed.append(multiprocessing.active_children()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    job = _job(folder, questions=QUESTIONS, batch_size=2)
    summary = run(find_documents(collection), output, job, RunOptions(workers=1), log=log.append, progress=kill)
    assert killed and summary.deaths == 1 and any("SIGKILL" in line for line in log)
    assert summary.failed == 1 and not multiprocessing.active_children()
    _check_rows(_read(output), expected)


def test_killed_run_ends_its_workers_and_can_be_resumed(folder, collection, expected, tmp_path):
    output = tmp_path / "out.jsonl"
    questions = [argument for question in QUESTIONS for argument in ("--question", question)]
    command = [sys.executable, "-m", "unlimiformer", "run", str(collection), "-o", str(output), "--task", "ask"]
    command += [*questions, "--model", folder, "--top-k", "9", "--max-new-tokens", "6"]
    command += ["--workers", "1", "--batch-size", "1"]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (output.exists() and output.read_bytes().count(b"\n") >= 4):
        time.sleep(0.005)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(first.pid)], capture_output=True, text=True).stdout
    first.kill()
    first.wait()
    before = output.read_bytes().count(b"\n")
    assert 4 <= before < 25
    for pid in map(int, children.split()):
        while time.monotonic() < deadline and _is_alive(pid):
            time.sleep(0.01)
        assert not _is_alive(pid)
    second = subprocess.run([*command, "--json"], capture_output=True, text=True)
    summary = json.loads(second.stdout)
    assert second.returncode == 1 and summary["failed"] == 1
    assert summary["done_before"] >= before and summary["done"] == 25
    assert "failed: line 25" not in second.stderr  # the first run reported it
    _check_rows(_read(output), expected)


def _is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ray_processes_every_document_once_when_workers_are_killed(folder, collection, expected, tmp_path, monkeypatch):
    output, pids, killed = tmp_path / "out.jsonl", [], []
    events = RayPool.events

    def record_pids(self, seconds):
        batch = events(self, seconds)
        pids.extend(event.info["pid"] for event in batch if isinstance(event, Ready))
        return batch

    def kill(status):
        if status.done >= 3 + 5 * len(killed) and len(killed) < min(2, len(pids)):  # one worker, later the other
            killed.append(pids[len(killed)])
            os.kill(killed[-1], signal.SIGKILL)

    monkeypatch.setattr(RayPool, "events", record_pids)
    job = _job(folder, questions=QUESTIONS, batch_size=1)
    options = RunOptions(workers=2, ray_address="local")
    summary = run(find_documents(collection), output, job, options, progress=kill)
    assert summary.deaths == 2 and summary.workers == 2 and len(set(pids)) > 2 and set(killed) == set(pids[:2])
    _check_rows(_read(output), expected)


def test_missing_ray_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"--ray needs the package 'ray'.*unlimiformer-hf\[ray\]"):
        RayPool(Job("summarize", "none"), "local", 1)


def test_error_while_loading_the_model_ends_the_run_and_keeps_its_kind(collection, tmp_path):
    output = tmp_path / "out.jsonl"
    with pytest.raises(UnlimiformerError, match=r"has no config\.json") as error:
        run(find_documents(collection), output, _job(str(tmp_path), questions=QUESTIONS), RunOptions(workers=1))
    with pytest.raises(UnlimiformerError) as expected_error:
        load(str(tmp_path))
    assert error.type is expected_error.type and not multiprocessing.active_children()
