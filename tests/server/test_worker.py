"""The background worker without HTTP: priorities, resuming, other models, failures, and a full disk."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections import Counter

import pytest
import torch
from conftest import make_book, make_tokenizer
from memory_helpers import windows_recorded
from summary_helpers import make_story
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
from unlimiformer.errors import InputError, StorageError
from unlimiformer.memory.encode import encode_windows
from unlimiformer.server.priority_lock import CancelledError, PriorityLock


def test_answers_have_priority_over_indexing():
    """An answer that arrives while a document is indexed does not wait for the end of the document."""
    order, lock = [], PriorityLock()
    indexing = threading.Event()

    def index():
        with lock.for_indexing():
            indexing.set()
            wait_for(lambda: lock.waiting_answers, "an answer that waits")
            lock.yield_to_answers()
            order.append("indexed")

    thread = threading.Thread(target=index)
    thread.start()
    assert indexing.wait(10)
    with lock.for_answer(threading.Event()):
        order.append("answered")
    thread.join()
    assert order == ["answered", "indexed"]


def test_indexing_resumes_after_close(tmp_path, monkeypatch):
    yield_to_answers = PriorityLock.yield_to_answers
    with monkeypatch.context() as patch:
        patch.setattr(PriorityLock, "yield_to_answers", lambda self: time.sleep(0.05))  # slow enough to be closed
        with running_worker(tmp_path) as worker:
            document = add_document(worker, make_book(900))
            wait_for(lambda: worker.progress(document)[0] > 8, "some windows")
        assert worker.documents.get(document.id).state == "waiting"
        assert worker.progress(document)[0] < worker.progress(document)[1]
    calls = []
    monkeypatch.setattr(
        PriorityLock, "yield_to_answers", lambda self: (calls.append(worker.progress(document)), yield_to_answers(self))
    )
    with running_worker(tmp_path) as worker:
        wait_for_state(worker, document)
    assert calls[0][0] > 4, "not from the beginning"


def test_documents_of_another_model_are_indexed_again(tmp_path):
    with running_worker(tmp_path) as worker:
        document = add_document(worker, make_book())
        wait_for_state(worker, document)
        answer(worker, document)
    causal = Unlimiformer(tiny_decoder("llama"), make_tokenizer(), window=64, top_k=12, block=4)
    indexed = []
    index = causal.index
    causal.index = lambda *arguments, **options: indexed.append(index(*arguments, **options)) or indexed[-1]
    with running_worker(tmp_path, causal) as worker:
        wait_for(lambda: indexed, "a new memory")
        wait_for_state(worker, document)
        assert answer(worker, document).text, "the new memory is used, not the one that was open"


def test_failed_document_does_not_stop_others(tmp_path, monkeypatch):
    with running_worker(tmp_path) as worker:
        fail_for_bad_texts(monkeypatch, worker, RuntimeError("no luck"))
        bad, good = add_document(worker, "bad w1"), add_document(worker, "w2 w3")
        wait_for_state(worker, good)
        assert worker.documents.get(bad.id).state == "failed"
        assert worker.documents.get(bad.id).error == "RuntimeError: no luck"


def test_unexpected_error_at_startup_does_not_end_the_thread(tmp_path, monkeypatch):
    with running_worker(tmp_path) as worker:
        document = add_document(worker, make_book())
        wait_for_state(worker, document)

    def fail(*_, **__):
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patch:
        patch.setattr(Memory, "load", fail)
        with running_worker(tmp_path) as worker:
            wait_for_state(worker, document, "failed")
            assert worker.documents.get(document.id).error == "RuntimeError: unexpected"
            patch.undo()
            other = add_document(worker, "w2 w3")
            wait_for_state(worker, other)
    with running_worker(tmp_path) as worker:  # what failed is tried again at the next start
        wait_for_state(worker, document)


class SmallDisk:
    """A file system of 2 MB."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True, capture_output=True)

    def fill(self, free_bytes):
        available = os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_bsize
        (self.folder / "filler").write_bytes(bytes(available - free_bytes))

    def empty(self):
        (self.folder / "filler").unlink()

    def close(self):
        subprocess.run(["umount", "--lazy", self.folder], check=True)


class PatchedDisk:
    """Any file system, with an `os.fsync` that reports a full disk after some calls: where mounting is not allowed."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        folder.mkdir()
        self._monkeypatch, self._fsync, self._calls_left = monkeypatch, os.fsync, 0

    def _refuse(self, file):
        if self._calls_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._calls_left -= 1
        self._fsync(file)

    def fill(self, free_bytes):
        self._calls_left = free_bytes // 10_000
        self._monkeypatch.setattr(os, "fsync", self._refuse)

    def empty(self):
        self._monkeypatch.setattr(os, "fsync", self._fsync)

    def close(self):
        self.empty()


@pytest.fixture(params=["mounted", "patched"])
def disk(request, tmp_path, monkeypatch):
    """A disk that can be filled; never skipped, since the second kind works everywhere."""
    try:
        disk = SmallDisk(tmp_path / "disk") if request.param == "mounted" else None
    except (OSError, subprocess.CalledProcessError):
        (tmp_path / "disk").rmdir()
        disk = None
    disk = disk or PatchedDisk(tmp_path / "disk", monkeypatch)
    yield disk
    disk.close()


def count_encoded_windows(monkeypatch):
    """Count how often each window, by its first stored token, is encoded from now on."""
    windows = Counter()

    def count(*args, **kwargs):
        for chunks in encode_windows(*args, **kwargs):
            windows.update(chunk.start for chunk in chunks)
            yield chunks

    monkeypatch.setattr("unlimiformer.memory.indexer.encode_windows", count)
    return windows


def test_full_disk_keeps_partial_work(disk, monkeypatch):
    """A document waits while the disk is full, keeps its partial memory, and continues when there is room again."""
    text, wrapped = make_book(4000), wrap_t5()
    windows = count_encoded_windows(monkeypatch)
    with running_worker(disk.folder / "documents", wrapped, retry_seconds=0.05) as worker:
        disk.fill(free_bytes=400_000)  # the text and its tokens fit, the states of all windows do not
        document = add_document(worker, text)
        wait_for(lambda: worker.documents.get(document.id).error, "the first refusal")
        memory = worker.documents.memory_path(document)
        done = windows_recorded(memory)
        states = set()
        for _ in range(50):
            states.add(worker.documents.get(document.id).state)
            time.sleep(0.01)
        assert states <= {"waiting", "reading"}, "it is tried again and never fails"
        assert windows_recorded(memory) == done > 0, "the partial memory is kept"
        wait_for(lambda: "No space left" in (worker.documents.get(document.id).error or ""), "the reason")
        disk.empty()
        ready = wait_for_state(worker, document)
        assert ready.error is None and ready.tokens == 4002
        repeated = [window for window, count in windows.items() if count > 1]
        assert len(repeated) <= wrapped.config.batch_size, "only the batch in flight is encoded again"
        stored = Memory.load(worker.documents.memory_path(document))
        assert len(windows) == stored.windows > done
        expected = wrap_t5().index(text)
        assert torch.equal(stored.store.all_states(), expected.store.all_states())
        assert answer(worker, ready).text


def test_refused_document_does_not_hold_up_others(tmp_path, monkeypatch):
    with running_worker(tmp_path, retry_seconds=0.05) as worker:
        index = worker.wrapped.index

        def refuse_large_text(text, **options):
            if len(text.text) > 1000:
                raise StorageError("the disk is full")
            return index(text, **options)

        monkeypatch.setattr(worker.wrapped, "index", refuse_large_text)
        large = add_document(worker, make_book(4000))
        wait_for(lambda: worker.documents.get(large.id).error, "the first refusal")
        small = add_document(worker, make_book(20))
        wait_for_state(worker, small)
        refused = wait_for_state(worker, large, "waiting")
        assert refused.error == "storage is not available (the disk is full); trying again"


def test_a_summary_lets_answers_pass_and_continues_after_it_was_cancelled(tmp_path, scribe):
    model = scribe()
    with running_worker(tmp_path, model.wrapped) as worker:
        document = wait_for_state(worker, add_document(worker, make_story(8, 100)))
        cancelled = threading.Event()
        write = model.write

        def cancel_later(text, instruction):
            if len(model.asked) > 16:
                cancelled.set()
            return write(text, instruction)

        model.write = cancel_later
        with pytest.raises(CancelledError):
            worker.answer(document, None, lambda text: None, cancelled)
        model.write, before = write, len(model.asked)
        yields = []
        worker.model_lock.yield_summary = lambda cancelled: yields.append(1)  # type: ignore[method-assign]
        pieces = []
        served = worker.answer(document, "Summarize the story.", pieces.append, threading.Event())
        assert len(yields) > 1
        whole = scribe()
        assert served.text == whole.wrapped.summarize(make_story(8, 100), words=200).text
        assert len(model.asked) - before <= len(whole.asked) - 8
        assert "".join(pieces).split() == served.text.split()
        assert len(served.provenance["sentences"]) > 1
        assert served.provenance["sentences"][0]["passages"]


def test_a_summary_waits_for_answers_and_indexing_for_both():
    lock, order, cancelled = PriorityLock(), [], threading.Event()

    def work(name, context):
        with context:
            order.append(name)

    with lock.for_answer(threading.Event()):
        threads = []
        for name, context in (
            ("index", lock.for_indexing()),
            ("summary", lock.for_summary(cancelled)),
            ("answer", lock.for_answer(threading.Event())),
        ):
            threads.append(threading.Thread(target=work, args=(name, context)))
            threads[-1].start()
        wait_for(lambda: lock.waiting_answers == 1 and lock.waiting_summaries == 1, "an answer and a summary that wait")
    for thread in threads:
        thread.join(10)
    assert order == ["answer", "summary", "index"]


@pytest.mark.parametrize("while_yielding", [False, True])
def test_a_waiting_summary_can_be_cancelled(while_yielding):
    lock, cancelled = PriorityLock(), threading.Event()
    holding, errors = threading.Event(), []

    def summarize():
        try:
            with lock.for_summary(cancelled):
                holding.set()
                wait_for(lambda: lock.waiting_answers, "an answer that waits")
                lock.yield_summary(cancelled)
        except CancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=summarize)
    if while_yielding:
        thread.start()
        assert holding.wait(10)
    with lock.for_answer(threading.Event()):
        if not while_yielding:
            thread.start()
        wait_for(lambda: lock.waiting_summaries, "a summary that waits")
        cancelled.set()
        thread.join(10)
        assert len(errors) == 1
        with pytest.raises(CancelledError), lock.for_answer(cancelled):
            pass  # the answer still holds the lock
    with lock.for_indexing():
        pass  # the lock is free again


def test_a_document_that_is_deleted_while_it_is_summarised(tmp_path, scribe):
    model = scribe()
    with running_worker(tmp_path, model.wrapped) as worker:
        document = wait_for_state(worker, add_document(worker, make_story(8, 100)))
        write = model.write

        def delete(text, instruction):
            worker.documents.remove(document.id)
            worker.forget(document)
            return write(text, instruction)

        model.write = delete
        with pytest.raises(InputError, match="a book was deleted while it was asked"):
            worker.answer(document, None, lambda text: None, threading.Event())
        assert not worker.documents.memory_path(document).parent.exists()
