"""A run does every document once, whoever dies: with workers that do as the test says."""

from __future__ import annotations

import json
import random
import time

import pytest
import torch

from unlimiformer.batch import Job, find_documents
from unlimiformer.batch import pool_size as staffing
from unlimiformer.batch import runner as scheduling
from unlimiformer.batch.pool import Died, Done, Ready
from unlimiformer.batch.results import ResultFile
from unlimiformer.batch.runner import run
from unlimiformer.errors import UnlimiformerError

WORK = Job("ask", "none", questions=("who?",), batch_size=4)


class Chance:
    """Workers that load, work and die by chance; some documents kill whoever is at them."""

    def __init__(self, seed, deadly=(), die=0.0, broken=()):
        self.chance, self.deadly, self.die, self.broken = random.Random(seed), set(deadly), die, set(broken)
        self.starting, self.at, self.given, self.hired, self.closed = [], {}, [], 0, False

    def start(self):
        self.starting.append(self.hired)
        self.hired += 1
        return self.hired - 1

    def give(self, worker, documents):
        assert worker not in self.at, "it has something to do"
        self.at[worker] = documents
        self.given.append([document.id for document in documents])

    def events(self, seconds):
        if self.starting and (not self.at or self.chance.random() < 0.5):
            worker = self.starting.pop(self.chance.randrange(len(self.starting)))
            if self.chance.random() < self.die / 4:
                return [Died(worker, "bad luck")]
            return [Ready(worker, {"model_digest": "d"})]
        if not self.at:
            return []
        worker = self.chance.choice(list(self.at))
        documents = self.at.pop(worker)
        if self.deadly & {document.id for document in documents} or self.chance.random() < self.die:
            return [Died(worker, "bad luck")]
        return [Done(worker, [self.row(document) for document in documents])]

    def row(self, document):
        wrong = {"error": "broken"} if document.id in self.broken else {"answers": []}
        return {"id": document.id, "digest": document.digest, **wrong}

    def kill(self, worker):
        raise AssertionError("nobody is late")

    def close(self):
        self.closed = True


class Slow(Chance):
    """Some documents are never done."""

    def __init__(self, slow):
        super().__init__(0)
        self.slow, self.gone = set(slow), []

    def events(self, seconds):
        if self.gone:
            return [Died(self.gone.pop(), "dismissed")]
        stuck = {worker: self.at.pop(worker) for worker in list(self.at) if self.slow & {d.id for d in self.at[worker]}}
        try:
            return super().events(seconds)
        finally:
            self.at |= stuck
            time.sleep(0.001)

    def kill(self, worker):
        del self.at[worker]
        self.gone.append(worker)


@pytest.fixture
def shelf(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": n, "document": "word " * (1 + n % 13)}) + "\n" for n in range(60)))
    return path


def _rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def _go(monkeypatch, crew, documents, out, workers=3, **others):
    monkeypatch.setattr(scheduling, "create_pool", lambda *_: (crew, workers))
    return run(documents, out, WORK, workers, **others)


@pytest.mark.parametrize("seed", range(30))
def test_every_document_has_one_row_whoever_dies(monkeypatch, shelf, tmp_path, seed):
    documents, out = find_documents(shelf), tmp_path / "out.jsonl"
    crew = Chance(seed, deadly=["7"] if seed % 2 else [], die=0.15)
    summary = _go(monkeypatch, crew, documents, out)
    rows = _rows(out)
    assert sorted(row["id"] for row in rows) == sorted(document.id for document in documents)
    failed = {row["id"] for row in rows if "error" in row}
    assert failed >= ({"7"} if seed % 2 else set()) and summary.failed == len(failed) and crew.closed
    for name in failed:
        assert "3 workers ended while they were at it" in next(row["error"] for row in rows if row["id"] == name)
        assert sum(name in given for given in crew.given) == 3 and crew.given.count([name]) >= 2
    for name in {row["id"] for row in rows} - failed:
        assert sum(name in given for given in crew.given) <= 3


def test_documents_come_longest_first_and_like_with_like(monkeypatch, shelf, tmp_path):
    documents = find_documents(shelf)
    crew = Chance(0)
    _go(monkeypatch, crew, documents, tmp_path / "out.jsonl", workers=2)
    sizes = {document.id: document.size for document in documents}
    given = [sizes[name] for batch in crew.given for name in batch]
    assert given == sorted(given, reverse=True)
    assert max(map(len, crew.given)) == WORK.batch_size
    assert len(crew.given[-1]) == len(crew.given[-2]) == 1  # so that all end at about the same time


def test_long_documents_and_other_questions_are_not_put_together(tmp_path):
    rows = [{"document": "x" * 150_000}, {"document": "x" * 140_000}, {"document": "y", "question": "own?"}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"document": "z"}, {"document": "w"}]))
    documents = find_documents(path)
    assert [WORK.batch(documents[n:]) for n in range(5)] == [1, 1, 1, 2, 1]
    assert Job("index", "none", memories="here").batch(documents[3:]) == 1


class Killed(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 17, 59])
def test_a_killed_run_goes_on(monkeypatch, shelf, tmp_path, after):
    documents, out = find_documents(shelf), tmp_path / "out.jsonl"

    def kill(status):
        if status.done >= after:
            raise Killed

    with pytest.raises(Killed):
        _go(monkeypatch, Chance(1), documents, out, progress=kill)
    before = {row["id"] for row in _rows(out)}
    with out.open("a") as file:
        file.write('{"id": "cut o')
    crew = Chance(2)
    summary = _go(monkeypatch, crew, documents, out)
    assert summary.done_before == len(before) and summary.done == 60
    assert not before & {name for batch in crew.given for name in batch}
    assert sorted(row["id"] for row in _rows(out)) == sorted(document.id for document in documents)
    assert _go(monkeypatch, None, documents, out).done == 60  # nobody is needed any more


def test_failures_are_done_again_if_that_is_wanted(monkeypatch, shelf, tmp_path):
    documents, out = find_documents(shelf), tmp_path / "out.jsonl"
    assert _go(monkeypatch, Chance(1, broken=["3", "4"]), documents, out).failed == 2
    assert _go(monkeypatch, None, documents, out).failed == 2
    crew = Chance(1, broken=["4"])
    assert _go(monkeypatch, crew, documents, out, retry_failed=True).failed == 1
    assert sorted(name for batch in crew.given for name in batch) == ["3", "4"]
    assert sorted(row["id"] for row in _rows(out)) == sorted(document.id for document in documents)


def test_changed_documents_are_done_again_and_bad_ones_need_nobody(monkeypatch, shelf, tmp_path):
    out = tmp_path / "out.jsonl"
    _go(monkeypatch, Chance(1), find_documents(shelf), out)
    lines = shelf.read_text().splitlines()
    lines[5], lines[6] = json.dumps({"id": 5, "document": "mended"}), "{"
    shelf.write_text("\n".join(lines))
    crew = Chance(1)
    summary = _go(monkeypatch, crew, find_documents(shelf), out)
    assert crew.given == [["5"]] and summary.failed == 1
    rows = _rows(out)
    assert len({row["id"] for row in rows}) == len(rows) == 61  # the row of what stood in the bad line is kept
    said = []
    shelf.write_text("\n".join([*lines[:6], json.dumps({"id": 6, "document": "mended"}), *lines[7:]]))
    assert _go(monkeypatch, Chance(1), find_documents(shelf), out, log=said.append).failed == 0
    assert "line 7" not in {row["id"] for row in _rows(out)} and not any("other documents" in line for line in said)
    assert "no JSON" in rows[-2]["error"] and rows[-2]["id"] == "line 7"


def test_a_document_that_takes_too_long_fails(monkeypatch, shelf, tmp_path):
    out, crew = tmp_path / "out.jsonl", Slow(["12", "13"])
    assert _go(monkeypatch, crew, find_documents(shelf), out, timeout=0.05).failed == 2
    rows = {row["id"]: row for row in _rows(out)}
    assert len(rows) == 60 and all("more than 0.05 s" in rows[name]["error"] for name in ("12", "13"))
    with pytest.raises(UnlimiformerError, match="timeout is 0"):
        _go(monkeypatch, crew, find_documents(shelf), out, timeout=0)


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
def test_as_many_workers_as_there_is_room_for(monkeypatch, device, devices, free, workers):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
    monkeypatch.setattr(staffing, "cpu_count", lambda: 6)
    monkeypatch.setattr(staffing, "free_memory", lambda: free)
    monkeypatch.setattr(staffing, "weight_bytes", lambda model: 1_000_000_000)
    assert staffing.default_workers("model", device) == workers


def test_workers_that_cannot_start_end_the_run(monkeypatch, shelf, tmp_path):
    with pytest.raises(UnlimiformerError, match="workers in a row ended while they loaded the model"):
        _go(monkeypatch, Chance(1, die=4.0), find_documents(shelf), tmp_path / "out.jsonl")


def test_estimates_go_by_length(monkeypatch, tmp_path):
    path, seen = tmp_path / "in.jsonl", []
    path.write_text("".join(json.dumps({"document": "x" * size}) + "\n" for size in (900_000, 100_000)))
    _go(monkeypatch, Chance(1), find_documents(path), tmp_path / "out.jsonl", workers=1, progress=seen.append)
    assert seen[0].left is None and [status.done for status in seen][-1] == 2
    half = next(status for status in seen if status.done == 1)
    assert half.share == pytest.approx(0.9, abs=0.01) and half.left is not None and seen[-1].left == 0


def test_another_run_is_not_gone_on_with(monkeypatch, shelf, tmp_path):
    out = tmp_path / "out.jsonl"
    with ResultFile.open(out, WORK.identity()) as ledger:
        ledger.pin("model_digest", "d")
        ledger.write({"id": "0", "digest": "x"})
        with pytest.raises(UnlimiformerError, match="another run is writing"), ResultFile.open(out, WORK.identity()):
            pass
    with (
        ResultFile.open(out, WORK.identity()) as ledger,
        pytest.raises(UnlimiformerError, match="another model digest"),
    ):
        ledger.pin("model_digest", "e")
    other = Job("ask", "none", questions=("when?",))
    out.write_text("")  # with no rows another run may have the file
    _go(monkeypatch, Chance(1), find_documents(shelf), out)
    with pytest.raises(UnlimiformerError, match="begun with questions"):
        run(find_documents(shelf), out, other)
    (tmp_path / "mine.jsonl").write_text("something\n")
    with pytest.raises(UnlimiformerError, match="was not written by a run"):
        run(find_documents(shelf), tmp_path / "mine.jsonl", WORK)


def test_a_row_that_is_none_is_named(monkeypatch, shelf, tmp_path):
    out = tmp_path / "out.jsonl"
    _go(monkeypatch, Chance(1), find_documents(shelf), out)
    out.write_text("nothing\n" + out.read_text())
    with pytest.raises(UnlimiformerError, match=r"out\.jsonl, line 1 is no row"):
        _go(monkeypatch, None, find_documents(shelf), out)
