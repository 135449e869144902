"""Many who ask at once: answers share batches, nobody waits for ever, and nothing grows."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest
from conftest import make_book, make_tokenizer
from tiny_causal_models import tiny_decoder
from worker_helpers import add_document, running_worker, wait_for, wait_for_state

from unlimiformer import Unlimiformer
from unlimiformer.server.content_memories import ContentMemories
from unlimiformer.server.priority_lock import CancelledError, PriorityLock
from unlimiformer.text.document_text import DocumentText


@pytest.mark.parametrize("kind", ["summary", "indexing"])
def test_who_waits_behind_answers_gets_turns(kind):
    """While three ask without a pause, work of lower priority goes on; it would take no turn before they end."""
    lock, done, given_up = PriorityLock(), threading.Event(), threading.Event()

    def ask():
        while not done.is_set() and not given_up.is_set():
            with lock.for_answer(threading.Event()):
                while lock.waiting_answers < 2 and not done.is_set() and not given_up.is_set():
                    time.sleep(0.001)  # until the others wait

    def work():
        cancelled = threading.Event()
        with lock.for_indexing() if kind == "indexing" else lock.for_summary(cancelled):
            for _ in range(20):
                lock.yield_to_answers() if kind == "indexing" else lock.yield_summary(cancelled)
        done.set()

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: lock.waiting_answers == 2, "three who ask")
    threads.append(threading.Thread(target=work))
    threads[-1].start()
    has_worked = done.wait(20)
    given_up.set()
    for thread in threads:
        thread.join(60)
    assert has_worked


def count_kept(worker):
    """What a server keeps, by its kind."""
    gc.collect()
    return {
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
        "open memories": len(worker._memories._open),
        "progress": len(worker._indexer._progress),
        "refused": len(worker._indexer._retry_at),
        "summaries": len(worker._summary_locks),
        "waiting questions": len(worker._facts._waiting),
        "watched": len(worker.documents.changes._waiting),
    }


def test_many_ask_while_documents_come_and_go(tmp_path):
    """Six ask without a pause; meanwhile documents are added, indexed, asked and deleted, and nothing is left."""
    wrapped = Unlimiformer(tiny_decoder("llama"), make_tokenizer(), window=64, top_k=12, block=4)
    with running_worker(tmp_path, wrapped) as worker:
        first = wait_for_state(worker, add_document(worker, make_book(150)))
        sizes, answer_all = [], worker._facts._answer_all
        worker._facts._answer_all = lambda asked, length: sizes.append(len(asked)) or answer_all(asked, length)
        stop, errors, answers = threading.Event(), [], []

        def ask(number):
            while not stop.is_set():
                try:
                    question = f"What is w{number + 3} w{len(answers) % 50 + 4}?"
                    answers.append(worker.answer(first, question, lambda _: None, threading.Event(), new_tokens=4))
                except Exception as error:
                    errors.append(error)

        def let_documents_come_and_go():
            documents = [add_document(worker, make_book(100 + n)) for n in range(2)]
            for document in documents:
                ready = wait_for_state(worker, document)
                worker.answer(ready, "What is w5?", lambda _: None, threading.Event(), new_tokens=4)
                worker.remove(ready)

        askers = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in askers:
            thread.start()
        try:
            let_documents_come_and_go()
            before = count_kept(worker)
            for _ in range(2):
                let_documents_come_and_go()
            after = count_kept(worker)
        finally:
            stop.set()
            for thread in askers:
                thread.join(60)
        assert not errors and len(answers) > 20
        assert max(sizes) > 1, "questions share a batch"
        waiting = 6 + 1  # how many questions wait just now
        for kind, count in after.items():
            assert count <= before[kind] + (waiting if kind == "waiting questions" else 2), (kind, before, after)
        assert worker.documents.all() == [worker.documents.get(first.id)]
        assert [path.name for path in tmp_path.iterdir()] == [first.id]


def test_memories_of_chats_keep_nothing_of_those_who_left(tmp_path):
    wrapped = Unlimiformer(tiny_decoder("llama"), make_tokenizer(), window=64, top_k=12, block=4)
    memories = ContentMemories(tmp_path / "chats", wrapped, PriorityLock(), most=2)
    left = threading.Event()
    left.set()
    for number in range(5):
        with pytest.raises(CancelledError):
            memories.get(DocumentText(f"w1 w{number + 2} " * 60), left, lambda *_: None)
    for number in range(4):
        memories.get(DocumentText(f"w1 w{number + 2} " * 60), threading.Event(), lambda *_: None)
    assert len(memories._open) == 2 and not memories._being_indexed
    assert len(list((tmp_path / "chats").iterdir())) == 2


def test_a_damaged_memory_of_a_chat_is_made_anew(tmp_path):
    wrapped = Unlimiformer(tiny_decoder("llama"), make_tokenizer(), window=64, top_k=12, block=4)
    content = DocumentText(make_book(150))

    def get():
        return ContentMemories(tmp_path / "chats", wrapped, PriorityLock()).get(
            content, threading.Event(), lambda *_: None
        )

    expected = get().store.all_states().clone()
    (states,) = (tmp_path / "chats").glob("*/states-*.bin")
    damaged = bytearray(states.read_bytes())
    damaged[100] ^= 1
    states.write_bytes(damaged)
    assert get().store.all_states().equal(expected)
