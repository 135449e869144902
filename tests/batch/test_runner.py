"""The scheduler and the result file, with simulated workers that die, fail or hang as each test needs."""

from __future__ import annotations

import json
import random
import time

import pytest
import torch

from unlimiformer.batch import Job, RunOptions, find_documents, pool_size, run, runner
from unlimiformer.batch.pool import Died, Done, Ready
from unlimiformer.batch.results import ResultFile
from unlimiformer.errors import InputError, StorageError

JOB = Job("ask", "none", questions=("who?",), batch_size=4)


class SimulatedPool:
    """Workers that start, finish and die at random; the documents in `deadly` kill every worker."""

    def __init__(self, seed, deadly=(), death_rate=0.0, broken=()):
        self.random, self.deadly, self.death_rate, self.broken = random.Random(seed), set(deadly), death_rate, broken
        self.starting, self.running, self.submitted, self.started, self.closed = [], {}, [], 0, False

    def start(self):
        self.starting.append(self.started)
        self.started += 1
        return self.started - 1

    def submit(self, worker, documents):
        assert worker not in self.running, "the worker is busy"
        self.running[worker] = documents
        self.submitted.append([document.id for document in documents])

    def events(self, seconds):
        if self.starting and (not self.running or self.random.random() < 0.5):
            worker = self.starting.pop(self.random.randrange(len(self.starting)))
            if self.random.random() < self.death_rate / 4:
                return [Died(worker, "simulated")]
            return [Ready(worker, {"model_digest": "d"})]
        if not self.running:
            return []
        worker = self.random.choice(list(self.running))
        documents = self.running.pop(worker)
        if self.deadly & {document.id for document in documents} or self.random.random() < self.death_rate:
            return [Died(worker, "simulated")]
        return [Done(worker, [self.row(document) for document in documents])]

    def row(self, document):
        content = {"error": "broken"} if document.id in self.broken else {"answers": []}
        return {"id": document.id, "digest": document.digest, **content}

    def kill(self, worker):
        raise AssertionError("no worker takes too long")

    def close(self):
        self.closed = True


class HangingPool(SimulatedPool):
    """Workers that never finish the documents in `slow`."""

    def __init__(self, slow):
        super().__init__(0)
        self.slow, self.killed = set(slow), []

    def events(self, seconds):
        if self.killed:
            return [Died(self.killed.pop(), "killed")]
        hanging = {
            worker: self.running.pop(worker)
            for worker in list(self.running)
            if self.slow & {document.id for document in self.running[worker]}
        }
        try:
            return super().events(seconds)
        finally:
            self.running |= hanging
            time.sleep(0.001)

    def kill(self, worker):
        del self.running[worker]
        self.killed.append(worker)


@pytest.fixture
def collection(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": n, "document": "word " * (1 + n % 13)}) + "\n" for n in range(60)))
    return path


def _read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def _run(monkeypatch, pool, documents, output, *, workers=3, log=lambda line: None, progress=lambda _: None, **options):
    monkeypatch.setattr(runner, "create_pool", lambda *_: (pool, workers))
    return run(documents, output, JOB, RunOptions(workers=workers, **options), log=log, progress=progress)


@pytest.mark.parametrize("seed", range(30))
def test_every_document_has_one_row_when_workers_die(monkeypatch, collection, tmp_path, seed):
    documents, output = find_documents(collection), tmp_path / "out.jsonl"
    pool = SimulatedPool(seed, deadly=["7"] if seed % 2 else [], death_rate=0.15)
    summary = _run(monkeypatch, pool, documents, output)
    rows = _read(output)
    assert sorted(row["id"] for row in rows) == sorted(document.id for document in documents)
    failed = {row["id"] for row in rows if "error" in row}
    assert failed >= ({"7"} if seed % 2 else set()) and summary.failed == len(failed) and pool.closed
    for name in failed:
        assert "3 workers died while processing it" in next(row["error"] for row in rows if row["id"] == name)
        assert sum(name in batch for batch in pool.submitted) == 3 and pool.submitted.count([name]) >= 2
    for name in {row["id"] for row in rows} - failed:
        assert sum(name in batch for batch in pool.submitted) <= 3


def test_long_documents_come_first_and_the_last_batches_are_small(monkeypatch, collection, tmp_path):
    documents = find_documents(collection)
    pool = SimulatedPool(0)
    _run(monkeypatch, pool, documents, tmp_path / "out.jsonl", workers=2)
    sizes = {document.id: document.size for document in documents}
    submitted = [sizes[name] for batch in pool.submitted for name in batch]
    assert submitted == sorted(submitted, reverse=True)
    assert max(map(len, pool.submitted)) == JOB.batch_size
    assert len(pool.submitted[-1]) == len(pool.submitted[-2]) == 1  # so that all workers end at about the same time


def test_long_documents_and_different_questions_do_not_share_a_batch(tmp_path):
    rows = [{"document": "x" * 150_000}, {"document": "x" * 140_000}, {"document": "y", "question": "own?"}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"document": "z"}, {"document": "w"}]))
    documents = find_documents(path)
    assert [JOB.count_batch(documents[n:]) for n in range(5)] == [1, 1, 1, 2, 1]
    assert Job("index", "none", memories="here").count_batch(documents[3:]) == 1


class SimulatedKill(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 17, 59])
def test_resume_after_kill(monkeypatch, collection, tmp_path, after):
    documents, output = find_documents(collection), tmp_path / "out.jsonl"

    def kill(status):
        if status.done >= after:
            raise SimulatedKill

    with pytest.raises(SimulatedKill):
        _run(monkeypatch, SimulatedPool(1), documents, output, progress=kill)
    before = {row["id"] for row in _read(output)} if output.exists() else set()
    with output.open("a") as file:
        file.write('{"id": "cut o')
    pool = SimulatedPool(2)
    summary = _run(monkeypatch, pool, documents, output)
    assert summary.done_before == len(before) >= after and summary.done == 60
    assert not before & {name for batch in pool.submitted for name in batch}
    assert sorted(row["id"] for row in _read(output)) == sorted(document.id for document in documents)
    assert _run(monkeypatch, None, documents, output).done == 60  # no worker is needed


def test_resume_a_run_of_an_earlier_version(monkeypatch, collection, tmp_path):
    documents, output = find_documents(collection), tmp_path / "out.jsonl"
    settings = {"task": "ask", "model": "none", "questions": ["who?"], "passages": 1, "model_digest": "d"}
    (tmp_path / "out.jsonl.settings.json").write_text(json.dumps(settings, indent=1) + "\n")
    (tmp_path / "out.jsonl.lock").touch()
    rows = [{"id": d.id, "digest": d.digest, "answers": [], "tokens": 3, "seconds": 0.1} for d in documents[:20]]
    output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pool = SimulatedPool(1)
    assert _run(monkeypatch, pool, documents, output).done_before == 20
    assert _read(output)[:20] == rows and len(_read(output)) == 60
    assert json.loads((tmp_path / "out.jsonl.settings.json").read_text()) == settings


def test_failures_are_retried_only_on_request(monkeypatch, collection, tmp_path):
    documents, output = find_documents(collection), tmp_path / "out.jsonl"
    assert _run(monkeypatch, SimulatedPool(1, broken=["3", "4"]), documents, output).failed == 2
    assert _run(monkeypatch, None, documents, output).failed == 2
    pool = SimulatedPool(1, broken=["4"])
    assert _run(monkeypatch, pool, documents, output, retry_failed=True).failed == 1
    assert sorted(name for batch in pool.submitted for name in batch) == ["3", "4"]
    assert sorted(row["id"] for row in _read(output)) == sorted(document.id for document in documents)


def test_changed_documents_are_processed_again_and_malformed_ones_need_no_worker(monkeypatch, collection, tmp_path):
    output = tmp_path / "out.jsonl"
    _run(monkeypatch, SimulatedPool(1), find_documents(collection), output)
    lines = collection.read_text().splitlines()
    lines[5], lines[6] = json.dumps({"id": 5, "document": "mended"}), "{"
    collection.write_text("\n".join(lines))
    pool = SimulatedPool(1)
    summary = _run(monkeypatch, pool, find_documents(collection), output)
    assert pool.submitted == [["5"]] and summary.failed == 1
    rows = _read(output)
    assert len({row["id"] for row in rows}) == len(rows) == 61  # the row of the document before line 7 broke is kept
    assert "not valid JSON" in rows[-2]["error"] and rows[-2]["id"] == "line 7"
    log = []
    collection.write_text("\n".join([*lines[:6], json.dumps({"id": 6, "document": "mended"}), *lines[7:]]))
    assert _run(monkeypatch, SimulatedPool(1), find_documents(collection), output, log=log.append).failed == 0
    assert "line 7" not in {row["id"] for row in _read(output)} and not any("other documents" in line for line in log)


def test_document_that_takes_too_long_fails(monkeypatch, collection, tmp_path):
    output, pool = tmp_path / "out.jsonl", HangingPool(["12", "13"])
    assert _run(monkeypatch, pool, find_documents(collection), output, timeout=0.05).failed == 2
    rows = {row["id"]: row for row in _read(output)}
    assert len(rows) == 60 and all("more than 0.05 s" in rows[name]["error"] for name in ("12", "13"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"timeout": 0}, "timeout is 0; expected more than 0"),
        ({"workers": 0}, "workers is 0; expected at least 1"),
    ],
)
def test_invalid_options_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        RunOptions(**options)


@pytest.mark.parametrize(
    ("device", "devices", "free", "workers"),
    [
        (None, 4, 64e9, 4),
        ("cuda", 4, 64e9, 4),
        ("cuda:1", 4, 64e9, 1),
        ("auto", 4, 64e9, 1),
        ("cpu", 4, 64e9, 6),
        (None, 0, 64e9, 6),
        (None, 0, 7e9, 2),
        (None, 0, 1e6, 1),
        (None, 0, None, 1),
    ],
)
def test_default_number_of_workers(monkeypatch, device, devices, free, workers):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
    monkeypatch.setattr(pool_size, "cpu_count", lambda: 6)
    monkeypatch.setattr(pool_size, "free_memory", lambda: free)
    monkeypatch.setattr(pool_size, "weight_bytes", lambda model: 1_000_000_000)
    assert pool_size.default_workers("model", device) == workers


def test_workers_that_cannot_start_end_the_run(monkeypatch, collection, tmp_path):
    with pytest.raises(InputError, match="workers in a row died while they loaded the model"):
        _run(monkeypatch, SimulatedPool(1, death_rate=4.0), find_documents(collection), tmp_path / "out.jsonl")


def test_remaining_time_is_estimated_from_document_sizes(monkeypatch, tmp_path):
    path, statuses = tmp_path / "in.jsonl", []
    path.write_text("".join(json.dumps({"document": "x" * size}) + "\n" for size in (900_000, 100_000)))
    documents, output = find_documents(path), tmp_path / "out.jsonl"
    _run(monkeypatch, SimulatedPool(1), documents, output, workers=1, progress=statuses.append)
    assert statuses[0].left is None and statuses[-1].done == 2
    half = next(status for status in statuses if status.done == 1)
    assert half.share == pytest.approx(0.9, abs=0.01) and half.left is not None and statuses[-1].left == 0


def test_output_in_use_is_refused(tmp_path):
    output = tmp_path / "out.jsonl"
    with (
        ResultFile.open(output, JOB.identity()),
        pytest.raises(StorageError, match=r"another run is writing .*out\.jsonl; wait until it has finished"),
        ResultFile.open(output, JOB.identity()),
    ):
        pass
    with ResultFile.open(output, JOB.identity()):  # the lock was released
        pass


@pytest.mark.parametrize("obstacle", ["file instead of the folder", "folder instead of the lock"])
def test_output_that_cannot_be_written_is_not_taken_for_one_in_use(tmp_path, obstacle):
    if obstacle == "file instead of the folder":
        (tmp_path / "run").touch()
    else:
        (tmp_path / "run" / "out.jsonl.lock").mkdir(parents=True)
    with (
        pytest.raises(StorageError, match=r"cannot write .*out\.jsonl .*: a file or folder of that name is in the way"),
        ResultFile.open(tmp_path / "run" / "out.jsonl", JOB.identity()),
    ):
        pass


def test_output_of_another_model_or_job_is_refused(monkeypatch, collection, tmp_path):
    output = tmp_path / "out.jsonl"
    with ResultFile.open(output, JOB.identity()) as results:
        results.pin_model("d")
        results.write({"id": "0", "digest": "x"})
    with (
        ResultFile.open(output, JOB.identity()) as results,
        pytest.raises(InputError, match="started with model_digest 'd', and now it is 'e': the weights differ"),
    ):
        results.pin_model("e")
    other = Job("ask", "none", questions=("when?",))
    with pytest.raises(InputError, match=r"started with questions \['who\?'\]; give these settings"):
        run(find_documents(collection), output, other)
    output.write_text("")  # without rows, another job may use the file
    _run(monkeypatch, SimulatedPool(1), find_documents(collection), output)
    with pytest.raises(InputError, match="started with questions"):
        run(find_documents(collection), output, other)
    (tmp_path / "foreign.jsonl").write_text("something\n")
    with pytest.raises(InputError, match="was not written by a run"):
        run(find_documents(collection), tmp_path / "foreign.jsonl", JOB)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nothing", r"out\.jsonl, line 1 is not a JSON object"),
        ('{"id": "a"}', r"out\.jsonl has a row without id and digest"),
    ],
)
def test_damaged_row_is_reported(monkeypatch, collection, tmp_path, line, reason):
    output = tmp_path / "out.jsonl"
    _run(monkeypatch, SimulatedPool(1), find_documents(collection), output)
    output.write_text(f"{line}\n" + output.read_text())
    with pytest.raises(InputError, match=reason):
        _run(monkeypatch, None, find_documents(collection), output)
