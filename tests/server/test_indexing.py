"""Indexing in the background: nothing ends it, passing faults pass, and what is stored is verified."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import threading
from contextlib import ExitStack, contextmanager

import pytest
import torch
from conftest import make_book, make_tokenizer
from filelock import FileLock
from tiny_causal_models import tiny_decoder
from worker_helpers import (
    add_document,
    answer,
    fail_for_bad_texts,
    running_worker,
    wait_for,
    wait_for_state,
    wrap_t5,
)

from unlimiformer import Memory, Unlimiformer
from unlimiformer.memory.description import sign
from unlimiformer.memory.storage import PartialWrite
from unlimiformer.memory.writer import MemoryWriter
from unlimiformer.server.documents import DocumentStore
from unlimiformer.server.indexing import BackgroundIndexer
from unlimiformer.server.priority_lock import PriorityLock

FAULTS = (RuntimeError("bad luck"), KeyError("search"), MemoryError(), SystemExit(3), RecursionError("too deep"))


def test_the_thread_is_started_again_whatever_ends_it(tmp_path, monkeypatch):
    """Errors of every kind are raised at random in all that the thread does; documents that none met become ready."""
    chance, met, faults, kinds = random.Random(5), set(), [], itertools.cycle(FAULTS)

    def fail_at_times(cls, name, likelihood):
        method = getattr(cls, name)

        def fragile(self, *arguments, **options):
            if threading.current_thread().name == "indexer" and chance.random() < likelihood:
                current = worker._indexer._current
                met.add(current and current.id)
                faults.append(next(kinds))
                raise faults[-1]
            return method(self, *arguments, **options)

        monkeypatch.setattr(cls, name, fragile)

    with running_worker(tmp_path) as worker:
        fail_at_times(BackgroundIndexer, "_next_document", 0.4)
        for cls, name in (
            (DocumentStore, "content"),
            (PriorityLock, "yield_to_answers"),
            (PartialWrite, "append"),
            (BackgroundIndexer, "_set_state"),
        ):
            fail_at_times(cls, name, 0.02)
        documents = [add_document(worker, make_book(30 + number), f"book {number}") for number in range(16)]
        wait_for(
            lambda: all(worker.documents.get(item.id).state in ("ready", "failed") for item in documents),
            "an end for every document",
        )
        states = {item.id: worker.documents.get(item.id) for item in documents}
        unharmed = {item.id for item in documents} - met
        assert len(unharmed) > 2 and all(states[name].state == "ready" for name in unharmed)
        assert all(states[name].error for name in states if states[name].state == "failed"), "it says why"
        assert len(faults) >= len(FAULTS) and None in met, "every kind, and also between two documents"
        health = worker.health
        assert health["running"] and health["restarts"] > 2 and health["error"]


def test_the_document_says_why_the_thread_ended(tmp_path, monkeypatch):
    with running_worker(tmp_path) as worker:
        fail_for_bad_texts(monkeypatch, worker, SystemExit("enough"))
        bad, good = add_document(worker, "bad w1"), add_document(worker, "w2 w3")
        wait_for_state(worker, good)
        assert wait_for_state(worker, bad, "failed").error == "SystemExit: enough"
        assert worker.health == {"running": True, "restarts": 1, "error": "SystemExit: enough"}


def make_ready(folder, *texts):
    with running_worker(folder) as worker:
        documents = [add_document(worker, text) for text in texts]
        return [wait_for_state(worker, document) for document in documents], worker.documents.memory_path


def test_a_folder_in_place_of_a_description(tmp_path):
    (bad, good), memory_path = make_ready(tmp_path, make_book(), "w2 w3")
    (memory_path(bad) / "memory.json").unlink()
    (memory_path(bad) / "memory.json").mkdir()
    with running_worker(tmp_path) as worker:
        wait_for_state(worker, good)
        other = wait_for_state(worker, add_document(worker, "w4 w5"))
        assert answer(worker, other).text
        assert "Is a directory" in wait_for_state(worker, bad, "failed").error


def test_a_description_without_a_key_is_made_anew(tmp_path):
    (bad,), memory_path = make_ready(tmp_path, make_book())
    path = memory_path(bad) / "memory.json"
    description = json.loads(path.read_text())
    del description["sha256"], description["about"]["search"]
    path.write_text(sign(description))
    with running_worker(tmp_path) as worker:
        assert answer(worker, wait_for_state(worker, bad)).text


def test_another_model_on_a_full_disk(tmp_path, monkeypatch):
    (document,), _ = make_ready(tmp_path, make_book())
    causal = Unlimiformer(tiny_decoder("llama"), make_tokenizer(), window=64, top_k=12, block=4)
    append, refusals = PartialWrite.append, [1] * 3

    def refuse(self, *arguments):
        if refusals:
            refusals.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, *arguments)

    monkeypatch.setattr(PartialWrite, "append", refuse)
    with running_worker(tmp_path, causal, retry_seconds=0.02) as worker:
        assert answer(worker, wait_for_state(worker, document)).text
        assert not refusals and worker.health["restarts"] == 0


@contextmanager
def too_many_open_files(monkeypatch, worker, document):
    """Writing a checkpoint fails, once some windows are stored."""
    write = PartialWrite.checkpoint

    def refuse(self, done, *arguments, **about):
        if done > 8:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        write(self, done, *arguments, **about)

    with monkeypatch.context() as patch:
        patch.setattr(PartialWrite, "checkpoint", refuse)
        yield "Too many open files", 8


@contextmanager
def locked(monkeypatch, worker, document):
    """Another process holds the lock of the memory."""
    folder = worker.documents.memory_path(document)
    (folder / "partial").mkdir(parents=True)
    with FileLock(folder / ".lock"):
        yield "another process is writing", 0


@pytest.mark.parametrize("fault", [too_many_open_files, locked])
def test_a_passing_fault_is_waited_for_and_keeps_what_is_done(tmp_path, monkeypatch, fault):
    with running_worker(tmp_path, retry_seconds=0.02) as worker:
        with ExitStack() as faults:
            with worker.model_lock.for_answer(threading.Event()):
                document = add_document(worker, make_book(900))
                reason, least_done = faults.enter_context(fault(monkeypatch, worker, document))
            wait_for(lambda: worker.documents.get(document.id).error, "the reason")
            first_error = worker.documents.get(document.id).error
            assert first_error.startswith("storage is not available (") and first_error.endswith("; trying again")
            assert reason in first_error
            done = []
            write_tokens = MemoryWriter.write_tokens

            def note_done(self, tokens):
                source = write_tokens(self, tokens)
                done.append(self.done)
                return source

            monkeypatch.setattr(MemoryWriter, "write_tokens", note_done)
        ready = wait_for_state(worker, document)
        assert ready.error is None and answer(worker, ready).text
        assert done[-1] >= least_done, "it continued"


def test_a_memory_that_cannot_be_opened_for_a_moment_is_not_made_anew(tmp_path, monkeypatch):
    (document,), memory_path = make_ready(tmp_path, make_book())
    before = (memory_path(document) / "memory.json").stat()
    load, refusals = Memory.load.__func__, [1] * 3

    def refuse(cls, *arguments, **options):
        if refusals:
            refusals.pop()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return load(cls, *arguments, **options)

    monkeypatch.setattr(Memory, "load", classmethod(refuse))
    with running_worker(tmp_path, retry_seconds=0.02) as worker:
        monkeypatch.setattr(worker.wrapped, "index", lambda *_, **__: pytest.fail("it is indexed again"))
        wait_for_state(worker, document)
        assert not refusals
    after = (memory_path(document) / "memory.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_refused_document_holds_up_no_new_one(tmp_path, monkeypatch):
    """The pause before the next attempt is that document's own: here it would never end."""
    with running_worker(tmp_path, retry_seconds=1e6) as worker:
        index = worker.wrapped.index

        def refuse_bad_text(text, **options):
            if "bad" in text.text:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return index(text, **options)

        monkeypatch.setattr(worker.wrapped, "index", refuse_bad_text)
        bad = add_document(worker, "bad w1")
        wait_for(lambda: worker.documents.get(bad.id).error, "the first refusal")
        wait_for_state(worker, add_document(worker, "w2 w3"))


def test_memories_of_an_earlier_process_are_verified(tmp_path):
    (flipped, whole), memory_path = make_ready(tmp_path, make_book(), make_book(150))
    (states,) = memory_path(flipped).glob("states-*.bin")
    content = bytearray(states.read_bytes())
    content[len(content) // 2] ^= 4
    states.write_bytes(content)
    with running_worker(tmp_path) as worker:
        indexed = []
        index = worker.wrapped.index
        worker.wrapped.index = lambda text, **options: indexed.append(len(text.text)) or index(text, **options)
        with worker.model_lock.for_answer(threading.Event()):  # until now, nothing can be indexed
            wait_for_state(worker, whole)
            wait_for_state(worker, flipped, "waiting")
        wait_for_state(worker, flipped)
        expected = wrap_t5().index(make_book()).store.all_states()
        assert torch.equal(worker.open_memory(flipped).store.all_states(), expected)
    assert set(indexed) <= {len(make_book())}, "the other one was not indexed again"


def test_nothing_is_ready_before_it_is_verified(tmp_path, monkeypatch):
    (document,), _ = make_ready(tmp_path, make_book())
    load, may_load = Memory.load.__func__, threading.Event()

    def wait(cls, *arguments, **options):
        assert may_load.wait(60)
        return load(cls, *arguments, **options)

    monkeypatch.setattr(Memory, "load", classmethod(wait))
    with running_worker(tmp_path) as worker:
        assert worker.documents.get(document.id).state == "checking"
        may_load.set()
        wait_for_state(worker, document)
