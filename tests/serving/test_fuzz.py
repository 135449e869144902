"""A fuzzer over the API, by its own description: no answer is an error of the server."""

from __future__ import annotations

import pytest
import schemathesis
from conftest import make_book, make_tokenizer
from hypothesis import HealthCheck, settings
from tiny import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.asking import Asking
from unlimiformer.serving import Library, Limits, Worker, create_app


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    wrapped = Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9)
    limits = Limits(document_bytes=5000, documents=30, new_tokens=3)
    worker = Worker(wrapped, Asking("decoder", "{question}"), Library(tmp_path_factory.mktemp("library")), limits)
    document = worker.library.add("a book", make_book(60))
    worker.added()
    while worker.library.get(document.id).state != "ready":
        pass
    yield worker, document
    worker.close()


@pytest.fixture(scope="module")
def schema(served):
    worker, _ = served
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(worker, "tiny"))


lazily = schemathesis.pytest.from_fixture("schema")


@lazily.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_nothing_is_an_error_of_the_server(case, served):
    _, document = served
    asked_of_ours = hash(str(case.body)) % 2 == 0 and case.method != "DELETE"
    if asked_of_ours and "number" in (case.path_parameters or {}):
        case.path_parameters["number"] = document.id
    response = case.call()
    assert response.status_code < 500, (case.as_curl_command(), response.text)
