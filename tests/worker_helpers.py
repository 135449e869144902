"""A background worker with a tiny model, and waiting for what it does."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

from conftest import make_tokenizer
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.qa import QuestionFormat
from unlimiformer.server import BackgroundWorker, DocumentStore, Limits
from unlimiformer.text.document_text import DocumentText


def wrap_t5(**settings):
    return Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9, **settings)


@contextmanager
def running_worker(folder, wrapped=None, **options):
    worker = BackgroundWorker(
        wrapped or wrap_t5(), QuestionFormat("decoder", "{question}"), DocumentStore(folder), Limits(), **options
    )
    try:
        yield worker
    finally:
        worker.close()


def add_document(worker, text, name="a book"):
    document = worker.documents.add(name, DocumentText(text))
    worker.wake_up()
    return document


def wait_for(condition, description, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s: {description}"
        time.sleep(0.005)


def wait_for_state(worker, document, state="ready"):
    wait_for(lambda: worker.documents.get(document.id).state == state, f"{state}: {worker.documents.all()}")
    return worker.documents.get(document.id)


def answer(worker, document, question="w3"):
    return worker.answer(document, question, lambda text: None, threading.Event(), new_tokens=3)


def fail_for_bad_texts(monkeypatch, worker, error):
    """Let indexing a text that has "bad" raise an error; other texts are indexed."""
    index = worker.wrapped.index

    def fail(text, **options):
        if "bad" in text.text:
            raise error
        return index(text, **options)

    monkeypatch.setattr(worker.wrapped, "index", fail)
