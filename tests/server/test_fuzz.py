"""A fuzzer over the API, by its own description: no answer is an error of the server."""

from __future__ import annotations

import pytest
import schemathesis
from conftest import make_book, make_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.qa import QuestionFormat
from unlimiformer.server import BackgroundWorker, DocumentStore, Limits, create_app


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    wrapped = Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9)
    limits = Limits(document_bytes=5000, documents=30, new_tokens=3)
    worker = BackgroundWorker(
        wrapped, QuestionFormat("decoder", "{question}"), DocumentStore(tmp_path_factory.mktemp("library")), limits
    )
    document = worker.library.add("a book", make_book(60))
    worker.added()
    while worker.library.get(document.id).state != "ready":
        pass
    yield worker, document
    worker.close()


def test_nothing_is_an_error_of_the_server(served):
    worker, document = served
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(worker, "tiny", host=None))
    seen = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == "/api/progress":  # it has no end
            continue

        @given(case=operation.as_strategy(), ours=booleans())
        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def probe(case, ours):
            if ours and case.method != "DELETE" and "number" in (case.path_parameters or {}):
                case.path_parameters["number"] = document.id
            response = case.call()
            seen.add(response.status_code)
            assert response.status_code < 500, (case.as_curl_command(), response.text)

        probe()
    assert {200, 201, 204, 404, 422} & seen >= {200, 201, 404, 422}
