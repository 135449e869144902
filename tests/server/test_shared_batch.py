"""Questions of different people in one batch."""

from __future__ import annotations

import threading
import time

import pytest
from conftest import make_book, make_tokenizer
from tiny_causal_models import tiny_decoder

from unlimiformer import Unlimiformer
from unlimiformer.qa import QuestionFormat
from unlimiformer.server import BackgroundWorker, DocumentStore, Limits
from unlimiformer.server.priority_lock import CancelledError, PriorityLock
from unlimiformer.server.shared_batch import SharedBatch
from unlimiformer.text.document_text import DocumentText


def ask_all(batch, questions, cancelled=None):
    """Ask in a thread each; return answers or errors by question."""
    results = {}

    def ask(question, settings):
        try:
            results[question] = batch.answer(question, settings, (cancelled or {}).get(question, threading.Event()))
        except (CancelledError, ValueError) as error:
            results[question] = error

    threads = [threading.Thread(target=ask, args=item) for item in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_questions_that_wait_share_a_batch():
    sizes = []

    def answer_all(questions, settings):
        sizes.append((len(questions), settings))
        time.sleep(0.05)
        return [question * 2 for question in questions]

    batch = SharedBatch(PriorityLock(), answer_all)
    results = ask_all(batch, [(number, number // 100) for number in [*range(12), *range(100, 103)]])
    assert results == {number: 2 * number for number in results} and len(results) == 15
    assert max(size for size, _ in sizes) <= 8 and len(sizes) <= 5
    assert sum(size for size, settings in sizes if settings == 1) == 3


def test_one_that_fails_does_not_fail_the_others():
    def answer_all(questions, settings):
        if 3 in questions:
            raise ValueError("three")
        return questions

    results = ask_all(SharedBatch(PriorityLock(), answer_all), [(number, 0) for number in range(5)])
    assert isinstance(results.pop(3), ValueError) and results == {0: 0, 1: 1, 2: 2, 4: 4}


def test_a_cancelled_question_is_not_asked():
    lock, asked = PriorityLock(), []
    batch = SharedBatch(lock, lambda questions, _: asked.extend(questions) or questions)
    cancelled = threading.Event()
    with lock.for_indexing():
        thread = threading.Thread(target=lambda: ask_all(batch, [(1, 0), (2, 0)], {1: cancelled}))
        thread.start()
        time.sleep(0.1)
        cancelled.set()
        time.sleep(0.3)
    thread.join(30)
    assert asked == [2]


@pytest.fixture
def worker(tmp_path):
    wrapped = Unlimiformer(tiny_decoder("llama"), make_tokenizer(), window=64, top_k=12, block=4)
    worker = BackgroundWorker(wrapped, QuestionFormat(), DocumentStore(tmp_path), Limits())
    yield worker
    worker.close()


def test_answers_of_a_batch_are_those_of_single_questions(worker):
    documents = [worker.documents.add(f"book {n}", DocumentText(make_book(80 + 40 * n))) for n in range(3)]
    worker.wake_up()
    deadline = time.monotonic() + 60
    while any(worker.documents.get(item.id).state != "ready" for item in documents) and time.monotonic() < deadline:
        time.sleep(0.02)
    documents = [worker.documents.get(item.id) for item in documents]
    asked = [(documents[n % 3], f"What is w{n + 3} w{n + 4}?") for n in range(8)]
    alone = [worker.answer(*item, lambda _: None, threading.Event(), new_tokens=6) for item in asked]
    sizes, answer_facts = [], worker._facts._answer_all
    worker._facts._answer_all = lambda questions, length: (
        sizes.append(len(questions)) or answer_facts(questions, length)
    )
    together = [None] * 8

    def ask(number):
        together[number] = worker.answer(*asked[number], lambda _: None, threading.Event(), new_tokens=6)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(sizes) < 8
    for single, shared in zip(alone, together, strict=True):
        assert shared.text == single.text
        assert shared.provenance["passages"][0]["start"] == single.provenance["passages"][0]["start"]
