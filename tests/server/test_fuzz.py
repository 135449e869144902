"""Fuzz the API by its own OpenAPI description: no request may cause a server error.

`UNLIMIFORMER_FUZZ=10000` makes so many requests, shared among the operations; otherwise there are 40 of each.
"""

from __future__ import annotations

import time

import pytest
import schemathesis
from conftest import make_book, make_tokenizer
from fuzzing import EXAMPLES, REQUESTED
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.qa import QuestionFormat
from unlimiformer.server import BackgroundWorker, DocumentStore, Limits, create_app
from unlimiformer.text.document_text import DocumentText


@pytest.fixture(scope="module")
def worker_and_document(tmp_path_factory):
    wrapped = Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9)
    limits = Limits(document_bytes=5000, documents=30, new_tokens=3)
    worker = BackgroundWorker(
        wrapped, QuestionFormat("decoder", "{question}"), DocumentStore(tmp_path_factory.mktemp("library")), limits
    )
    document = worker.documents.add("a book", DocumentText(make_book(60)))
    worker.wake_up()
    while worker.documents.get(document.id).state != "ready":
        time.sleep(0.01)
    yield worker, document
    worker.close()


def test_no_request_causes_a_server_error(worker_and_document):
    worker, document = worker_and_document
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(worker, "tiny", host=None))
    status_codes, answered, requests = set(), set(), 0
    examples = 40 if REQUESTED is None else -(-EXAMPLES // schema.statistic.operations.total)
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path == "/api/progress":  # a stream without an end
            continue

        @given(case=operation.as_strategy(), use_existing=booleans())
        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def probe(case, use_existing):
            if use_existing and case.method != "DELETE" and "document_id" in (case.path_parameters or {}):
                case.path_parameters["document_id"] = document.id
            response = case.call()
            nonlocal requests
            requests += 1
            status_codes.add(response.status_code)
            if response.status_code == 200:
                answered.add(case.path)
            assert response.status_code < 500, (case.as_curl_command(), response.text)

        probe()
    assert {200, 201, 204, 404, 422} & status_codes >= {200, 201, 404, 422}
    assert "/api/documents/{document_id}/answers" in answered, "existing documents were asked"
    print(f"{requests} requests, status codes {sorted(status_codes)}")
