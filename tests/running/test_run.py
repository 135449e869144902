"""A run does every document once, whoever dies: with workers that do as the test says."""

from __future__ import annotations

import json
import random

import pytest

from unlimiformer.errors import UnlimiformerError
from unlimiformer.running import Work, find_documents, scheduling
from unlimiformer.running.crew import Died, Done, Ready
from unlimiformer.running.ledger import Ledger
from unlimiformer.running.scheduling import run

WORK = Work("ask", "none", questions=("who?",), batch_size=4)


class Chance:
    """Workers that load, work and die by chance; some documents kill whoever is at them."""

    def __init__(self, seed, deadly=(), die=0.0, broken=()):
        self.chance, self.deadly, self.die, self.broken = random.Random(seed), set(deadly), die, set(broken)
        self.starting, self.at, self.given, self.hired, self.closed = [], {}, [], 0, False

    def hire(self):
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

    def close(self):
        self.closed = True


@pytest.fixture
def shelf(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": n, "document": "word " * (1 + n % 13)}) + "\n" for n in range(60)))
    return path


def _rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def _go(monkeypatch, crew, documents, out, workers=3, **others):
    monkeypatch.setattr(scheduling, "_crew", lambda *_: (crew, workers))
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
    assert [WORK.batch(documents[n:], 9) for n in range(5)] == [1, 1, 1, 2, 1]
    assert Work("index", "none", memories="here").batch(documents[3:], 9) == 1


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
    assert "no JSON" in rows[-2]["error"] and rows[-2]["id"] == "line 7"


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
    with Ledger.open(out, WORK.identity()) as ledger:
        ledger.settle("model_digest", "d")
        with pytest.raises(UnlimiformerError, match="another run is writing"), Ledger.open(out, WORK.identity()):
            pass
    with Ledger.open(out, WORK.identity()) as ledger, pytest.raises(UnlimiformerError, match="another model digest"):
        ledger.settle("model_digest", "e")
    other = Work("ask", "none", questions=("when?",))
    with pytest.raises(UnlimiformerError, match=r"begun with questions \['who\?'\]; give these"):
        run(find_documents(shelf), out, other)
    (tmp_path / "mine.jsonl").write_text("something\n")
    with pytest.raises(UnlimiformerError, match="was not written by a run"):
        run(find_documents(shelf), tmp_path / "mine.jsonl", WORK)


def test_a_row_that_is_none_is_named(monkeypatch, shelf, tmp_path):
    out = tmp_path / "out.jsonl"
    _go(monkeypatch, Chance(1), find_documents(shelf), out)
    out.write_text("nothing\n" + out.read_text())
    with pytest.raises(UnlimiformerError, match=r"out\.jsonl, line 1 is no answer"):
        _go(monkeypatch, None, find_documents(shelf), out)
