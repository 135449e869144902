"""Connections of clients that are slow, silent, ambiguous or too many."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from conftest import make_tokenizer
from running_server import RunningServer
from tiny_models import WINDOW, make
from worker_helpers import wait_for

from unlimiformer import Unlimiformer
from unlimiformer.qa import QuestionFormat
from unlimiformer.text.document_text import DocumentText


@contextmanager
def running_server(folder, **options):
    wrapped = Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9)
    server = RunningServer(wrapped, QuestionFormat("decoder", "{question}"), folder, **options)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """A server that waits a second for headers, and for more of a body."""
    with running_server(
        tmp_path_factory.mktemp("library"), timeouts={"header_seconds": 1.0, "idle_seconds": 1.0}
    ) as server:
        yield server


def connect(server):
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def read_all(connection):
    """All bytes until the server closes the connection; fails if it does not."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize("begin", [b"", b"GET /api/status HTTP/1.1\r\nHost: 127.0"], ids=["nothing", "half a header"])
def test_headers_must_come_in_time(hasty, begin):
    with connect(hasty) as connection:
        connection.sendall(begin)
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_a_byte_now_and_then_does_not_prolong_the_time(hasty):
    with connect(hasty) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.02)
        for _ in range(1000):
            try:
                connection.sendall(b"X")
                if connection.recv(9):
                    break
            except TimeoutError:
                continue
            except OSError:  # closed
                break
        else:
            raise AssertionError("the connection was never closed")


def test_a_second_request_has_to_come_in_time_too(hasty):
    with connect(hasty) as connection:
        connection.sendall(b"GET /icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = b""
        while not answer.endswith(b"</svg>\n"):
            answer += connection.recv(65536)
        connection.sendall(b"GET /icon.svg HT")
        assert b"HTTP/1.1 408 " in read_all(connection)


def test_a_body_that_stops_ends_the_connection(hasty):
    with connect(hasty) as connection:
        connection.sendall(b"POST /api/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{")
        assert b" 200 " not in read_all(connection)


def test_a_client_that_waits_for_events_is_not_idle(hasty):
    with httpx.stream("GET", f"{hasty.url}/api/progress", timeout=30) as response:
        events = response.iter_text()
        assert next(events).startswith("event: documents")
        time.sleep(2.5)
        httpx.post(f"{hasty.url}/api/documents", json={"name": "x", "text": "w1 w2"}).raise_for_status()
        assert '"name": "x"' in next(events)


def test_a_client_that_takes_nothing_is_given_up(hasty):
    with hasty.worker.model_lock.for_answer(threading.Event()):  # nothing is indexed
        document = hasty.worker.add("long", DocumentText("w1 " * 6_000_000))
        with connect(hasty) as connection:
            connection.sendall(f"GET /api/documents/{document.id}/text HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert connection.recv(8) == b"HTTP/1.1"
            wait_for(lambda: not hasty.connections(), "the end of the connection")
            assert len(read_all(connection)) < document.characters
        hasty.worker.remove(document)


def test_one_connection_too_many_is_refused(tmp_path):
    with running_server(tmp_path, connections=3) as server:
        open_ones = [connect(server) for _ in range(3)]
        while server.connections() < 3:
            time.sleep(0.01)
        with connect(server) as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 503 ")
        for connection in open_ones:
            connection.close()
        while server.connections():
            time.sleep(0.01)
        assert httpx.get(f"{server.url}/api/status").json()["limits"]["connections"] == 3


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", "content-length or transfer-encoding, not both"),
        ("Origin: http://127.0.0.1\r\nOrigin: http://evil.example", "one header origin, not 2"),
        ("Origin: http://evil.example\r\nOrigin: http://127.0.0.1", "one header origin, not 2"),
        ("Authorization: Bearer a\r\nAuthorization: Bearer b", "one header authorization, not 2"),
    ],
)
def test_ambiguous_headers_are_refused_and_end_the_connection(hasty, headers, reason):
    request = f"POST /api/documents HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
    with connect(hasty) as connection:
        connection.sendall(request.encode())
        answer = read_all(connection).decode()
    assert answer.startswith("HTTP/1.1 400 ") and reason in answer
    assert "connection: close" in answer.lower() and answer.count("HTTP/1.1") == 1


def test_one_origin_is_no_reason(hasty):
    host = hasty.url.removeprefix("http://")
    headers = f"Host: {host}\r\nOrigin: {hasty.url}\r\nConnection: close"
    with connect(hasty) as connection:
        connection.sendall(f"DELETE /api/answers/{'0' * 16} HTTP/1.1\r\n{headers}\r\n\r\n".encode())
        assert read_all(connection).startswith(b"HTTP/1.1 404 ")
