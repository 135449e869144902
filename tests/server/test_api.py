"""The server without a browser: documents, answers, limits, and what must not be possible."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from conftest import make_book, make_tokenizer
from fastapi.testclient import TestClient
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.qa import QuestionFormat
from unlimiformer.server import BackgroundWorker, DocumentStore, Limits, create_app
from unlimiformer.server.worker import PriorityLock


def _client(folder, limits=None, model=None, **options):
    settings = {"window": WINDOW, "top_k": 9} if model is None else {"window": 64, "top_k": 12, "block": 4}
    wrapped = Unlimiformer(model or make("t5"), make_tokenizer(), **settings)
    worker = BackgroundWorker(
        wrapped, QuestionFormat("decoder", "{question}"), DocumentStore(folder), limits or Limits()
    )
    return TestClient(create_app(worker, "tiny", **options), base_url="http://127.0.0.1"), worker


@pytest.fixture
def client(tmp_path):
    client, _ = _client(tmp_path / "library")
    with client:
        yield client


def _events(text):
    pairs = [part.split("\n") for part in text.strip().split("\n\n")]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in pairs]


def _added(client, text=None, name="a book"):
    added = client.post("/api/documents", json={"name": name, "text": text or make_book()})
    assert added.status_code == 201, added.text
    return added.json()["id"]


def _ready(client, number):
    told = _events(client.get(f"/api/documents/{number}/progress").text)
    assert told[-1][1]["state"] == "ready", told
    return told


def _asked(client, number, **body):
    return _events(client.post(f"/api/documents/{number}/answers", json=body).text)


def test_a_document_is_read_and_asked(client):
    number = _added(client)
    last = _ready(client, number)[-1][1]
    assert last["done"] == last["of"] > 3 and last["tokens"] == 202
    told = _asked(client, number, question="w3 w4", compare=True, new_tokens=6)
    assert told[0][0] == "asked" and told[-1][0] == "done"
    answer = told[-1][1]
    assert "".join(content for kind, content in told if kind == "text").strip() == answer["text"]
    with Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9) as u:
        memory = u.index(make_book())
        expected = u.generate(memory, prompt="w3 w4", max_new_tokens=6, do_sample=False, num_beams=1)
    assert "w3 w4 " + answer["text"] == expected.text
    looked = answer["provenance"]
    assert "".join(token["text"] for token in looked["tokens"]) == looked["answer"]
    assert len(looked["histogram"]) == 100 and looked["passages"][0]["text"] in make_book()
    assert answer["truncated"] is not None and answer["stopped"] is None
    assert client.get(f"/api/documents/{number}/text").text == make_book()
    assert _asked(client, number, new_tokens=2)[-1][0] == "done", "a summary"


def test_a_decoder_only_model(tmp_path):
    client, _ = _client(tmp_path, model=tiny_decoder("llama"))
    with client:
        number = _added(client)
        _ready(client, number)
        answer = _asked(client, number, question="w3", compare=True, new_tokens=4)[-1][1]
        assert answer["provenance"]["tokens"] and answer["truncated"] is not None


def test_a_short_answer_is_mended_with_beams(tmp_path):
    wrapped = Unlimiformer(make("bart"), make_tokenizer(), window=WINDOW, top_k=9)
    worker = BackgroundWorker(
        wrapped, QuestionFormat("decoder", "{question}"), DocumentStore(tmp_path), Limits(), beams=3
    )
    with TestClient(create_app(worker, "tiny"), base_url="http://127.0.0.1") as client:
        number = _added(client)
        _ready(client, number)
        memory, differing = worker._memory(worker.library.get(number)), []
        for question in (f"w{place}" for place in range(3, 30)):
            greedy, mended = (
                wrapped.generate(memory, prompt=question, num_beams=beams, max_new_tokens=6, do_sample=False).text
                for beams in (1, 3)
            )
            differing += [(question, greedy, mended)] if greedy != mended else []
        question, greedy, mended = differing[0]
        told = _asked(client, number, question=question, new_tokens=6)
    assert f"{question} " + "".join(content for kind, content in told if kind == "text").strip() == greedy
    assert f"{question} {told[-1][1]['text']}" == mended
    assert told[-1][1]["provenance"]["answer"].strip() == told[-1][1]["text"]


def test_documents_survive_a_restart(tmp_path):
    client, _ = _client(tmp_path)
    with client:
        done, removed = _added(client, name="one"), _added(client, name="two")
        _ready(client, done)
        _ready(client, removed)
        assert client.delete(f"/api/documents/{removed}").status_code == 204
    library = DocumentStore(tmp_path)
    waiting = library.add("three", make_book(90))
    library.update(waiting.id, state="reading")  # a process that was killed leaves this
    (tmp_path / "0123.part").mkdir()
    client, _ = _client(tmp_path)
    with client:
        assert [each["name"] for each in client.get("/api/documents").json()] == ["one", "three"]
        _ready(client, waiting.id)
        assert _asked(client, done, question="w1", new_tokens=2)[-1][0] == "done"
    assert {path.name for path in tmp_path.iterdir()} == {done, waiting.id}


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "<script>alert(1)</script>", "a\x00b", "..", "näm€ 🙂"])
def test_names_never_become_paths(tmp_path, name):
    client, _ = _client(tmp_path / "inside" / "library")
    with client:
        numbers = [_added(client, name=name)]
        sent = client.post("/api/files", files={"file": (name.replace("\x00", ""), make_book().encode())})
        numbers.append(sent.json()["id"])
        assert client.get("/api/documents").json()[0]["name"] == name
        for number in numbers:
            _ready(client, number)
            assert client.delete(f"/api/documents/{number}").status_code == 204
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert [path.name for path in (tmp_path / "inside").iterdir()] == ["library"]
    assert not list((tmp_path / "inside" / "library").iterdir())


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("post", "/api/documents", {"name": "x", "text": " \n"}, 422),
        ("post", "/api/documents", {"name": "", "text": "w1"}, 422),
        ("post", "/api/documents", {"name": "x", "text": "w1 " * 1000}, 413),
        ("post", "/api/documents", {"name": "x", "text": "w1", "more": 1}, 422),
        ("get", "/api/documents/0123456789abcdef", None, 404),
        ("get", "/api/documents/..%2F..%2Fx", None, 404),
        ("get", "/api/documents/xyz", None, 422),
        ("delete", "/api/documents/0123456789abcdef", None, 404),
        ("delete", "/api/answers/0123456789abcdef", None, 404),
        ("post", "/api/documents/0123456789abcdef/answers", {"question": "w1"}, 404),
        ("get", "/page.py", None, 404),
        ("get", "/..%2Fapp.py", None, 404),
    ],
)
def test_what_is_wrong_is_said(tmp_path, method, path, body, code):
    client, _ = _client(tmp_path, Limits(document_bytes=2000))
    with client:
        answer = client.request(method, path, json=body)
        assert answer.status_code == code and answer.text


def test_limits(tmp_path):
    client, worker = _client(tmp_path, Limits(document_bytes=2000, documents=2, question=10, waiting=1, new_tokens=3))
    with client:
        number = _added(client, make_book(60))
        _ready(client, number)
        path = f"/api/documents/{number}/answers"
        assert client.post(path, json={"question": "w1 " * 9}).status_code == 422
        assert client.post(path, json={"question": " "}).status_code == 422
        answer = _asked(client, number, question="w1", new_tokens=50)[-1][1]
        assert len(answer["text"].split()) <= 3
        assert client.post("/api/files", files={"file": ("x", b"\xff\xfe")}).status_code == 422
        assert client.post("/api/files", files={"file": ("x", b"w1 " * 1000)}).status_code == 413
        _added(client, "w1")
        assert client.post("/api/documents", json={"name": "x", "text": "w1"}).status_code == 409
        with worker._turns.answering(threading.Event()):  # someone else's answer takes its time
            first = threading.Thread(target=_asked, args=(client, number), kwargs={"question": "w1"})
            first.start()
            deadline = time.monotonic() + 10
            while client.get("/api/status").json()["answering"] < 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert client.post(path, json={"question": "w2"}).status_code == 429
        first.join()
        assert _asked(client, number, question="w2")[-1][0] == "done"


def test_an_answer_can_be_cancelled_and_runs_out_of_time(tmp_path):
    client, worker = _client(tmp_path)
    with client:
        number = _added(client)
        _ready(client, number)
        document, cancelled, heard = worker.library.get(number), threading.Event(), []
        told = worker.answer(document, "w1", lambda text: (heard.append(text), cancelled.set()), cancelled, True, 200)
        assert told.stopped == "cancelled" and told.truncated is None and len(told.text.split()) < 20
        with worker._turns.answering(threading.Event()):  # another answer is being written
            thread = threading.Thread(target=lambda: heard.append(_asked(client, number, question="w1")))
            thread.start()
            deadline = time.monotonic() + 10
            while not client.app.state.running and time.monotonic() < deadline:
                time.sleep(0.01)
            (waiting,) = client.app.state.running
            assert client.delete(f"/api/answers/{waiting}").status_code == 204
        thread.join()
        assert heard[-1][-1] == ("stopped", "cancelled") and not client.app.state.running
    client, worker = _client(tmp_path, Limits(seconds=1e-9))
    with client:
        assert _asked(client, number, question="w1")[-1][1]["stopped"] == "out of time"


def test_ends_of_lines_are_counted_as_they_are_read(client):
    text = "\ufeff" + make_book(80).replace(" w1", "\r\nw1").replace(" w2", "\rw2")
    number = _added(client, text)
    _ready(client, number)
    shown = client.get(f"/api/documents/{number}/text").text
    assert "\r" not in shown and not shown.startswith("\ufeff")
    looked = _asked(client, number, question="w3", new_tokens=3)[-1][1]["provenance"]
    assert looked["characters"] == len(shown)
    assert all(shown[each["start"] : each["end"]] == each["text"] for each in looked["passages"])


def test_a_reading_goes_on_where_it_stopped(tmp_path, monkeypatch):
    client, worker = _client(tmp_path)
    seen, yield_to_answers = [], PriorityLock.yield_to_answers
    monkeypatch.setattr(
        PriorityLock, "yield_to_answers", lambda self: (worker._closing.set() if len(seen) == 9 else None, seen.append(1))
    )
    document = worker.library.add("long", make_book(900))
    worker.added()
    worker._thread.join(60)
    assert worker.library.get(document.id).state == "waiting" and len(seen) == 10
    monkeypatch.setattr(
        PriorityLock, "yield_to_answers", lambda self: (seen.append(worker.progress(document)), yield_to_answers(self))
    )
    seen.clear()
    client, worker = _client(tmp_path)
    with client:
        _ready(client, document.id)
    assert seen[0][0] > 4, "not from the beginning"


def test_another_models_documents_are_read_again(tmp_path):
    client, _ = _client(tmp_path)
    with client:
        number = _added(client)
        _ready(client, number)
    client, worker = _client(tmp_path, model=tiny_decoder("llama"))
    with client:
        deadline = time.monotonic() + 30
        while not worker._can_be_asked(worker.library.get(number)) and time.monotonic() < deadline:
            worker._open.clear()
            time.sleep(0.02)
        _ready(client, number)
        assert _asked(client, number, question="w3", new_tokens=2)[-1][0] == "done"


def test_one_stream_tells_of_all_documents(tmp_path):
    client, _ = _client(tmp_path)
    with client:
        numbers = [_added(client, name=name) for name in ("one", "two")]
        for number in numbers:
            _ready(client, number)
        look = [route for route in client.app.routes if getattr(route, "path", "") == "/api/progress"]
        response = look[0].endpoint()

        async def first():
            async for event in response.body_iterator:
                return event

        ((kind, told),) = _events(asyncio.run(first()))
        assert kind == "documents" and [each["state"] for each in told] == ["ready", "ready"]


def test_a_body_is_not_read_to_its_end(tmp_path):
    client, _ = _client(tmp_path, Limits(document_bytes=2000))
    taken = []

    def endless():
        for _ in range(1000):
            taken.append(1)
            yield b"x" * 10_000

    with client:
        headers = {"Content-Type": "application/json"}
        assert client.post("/api/documents", content=endless(), headers=headers).status_code == 413
    client, _ = _client(tmp_path, Limits(document_bytes=2000), token="secret")
    with client:
        assert client.post("/api/documents", json={"name": "x", "text": "y"}).status_code == 401


def test_half_a_character_is_refused(client):
    for told in ('{"name": "\\ud800", "text": "w1"}', '{"name": "x", "text": "\\ud800"}', '{"\\ud800": 1}'):
        answer = client.post("/api/documents", content=told, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422 and answer.json()["detail"]


def test_a_document_removed_while_it_waits_leaves_nothing(tmp_path):
    client, worker = _client(tmp_path)
    with client:
        with worker._turns.answering(threading.Event()):
            number = _added(client)
            time.sleep(0.1)
            assert client.delete(f"/api/documents/{number}").status_code == 204
        other = _added(client)
        _ready(client, other)
    assert {path.name for path in tmp_path.iterdir()} == {other}


def test_a_token_is_needed_where_there_is_one(tmp_path):
    client, _ = _client(tmp_path, token="secret", host=None)
    with client:
        assert client.get("/api/documents").status_code == 401
        assert client.get("/api/documents", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/api/documents", headers={"Authorization": "Bearer secret"}).json() == []
        assert client.get("/").status_code == 200, "the page asks for it"


def test_other_sites_cannot_use_it(client):
    told = {"name": "x", "text": "w1"}
    assert client.post("/api/documents", json=told, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.get("/api/documents", headers={"Host": "evil.example"}).status_code == 400
    page = client.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for part in ("/", "/page.js", "/page.css"):
        assert "http" not in client.get(part).text.replace("http://www.w3.org/2000/svg", ""), "nothing from outside"
    assert client.get("/openapi.json").json()["info"]["title"] == "Unlimiformer"


def test_a_reading_lets_answers_pass(tmp_path):
    """An answer that comes while a book is read does not wait for its end."""
    order, turns = [], PriorityLock()
    began, asked = threading.Event(), threading.Event()

    def read():
        with turns.reading():
            began.set()
            asked.wait(10)
            while not turns._waiting:
                time.sleep(0.001)
            turns.yield_to_answers()
            order.append("read")

    def answer():
        asked.set()
        with turns.answering(threading.Event()):
            order.append("answered")

    reader = threading.Thread(target=read)
    reader.start()
    began.wait(10)
    answer()
    reader.join()
    assert order == ["answered", "read"]


def test_a_text_that_cannot_be_read_fails_and_others_go_on(tmp_path, monkeypatch):
    client, worker = _client(tmp_path)
    index = worker.wrapped.index

    def broken(text, **settings):
        if "bad" in text.read_text():
            raise RuntimeError("no luck")
        return index(text, **settings)

    monkeypatch.setattr(worker.wrapped, "index", broken)
    with client:
        bad, good = _added(client, "bad w1"), _added(client, "w2 w3")
        _ready(client, good)
        told = client.get(f"/api/documents/{bad}").json()
        assert told["state"] == "failed" and "no luck" in told["error"]
        assert client.post(f"/api/documents/{bad}/answers", json={"question": "w1"}).status_code == 409
