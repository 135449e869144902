"""The HTTP API without a browser: documents, answers, limits, restarts, and requests that must be refused."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import make_book, make_tokenizer
from document_files import make_pdf, set_column
from fastapi.testclient import TestClient
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make
from worker_helpers import fail_for_bad_texts, wait_for

from unlimiformer import Memory, Unlimiformer
from unlimiformer.qa import QuestionFormat
from unlimiformer.server import BackgroundWorker, DocumentStore, Limits, create_app
from unlimiformer.text.document_text import DocumentText


def make_client(folder, limits=None, model=None, **options):
    settings = {"window": WINDOW, "top_k": 9} if model is None else {"window": 64, "top_k": 12, "block": 4}
    wrapped = Unlimiformer(model or make("t5"), make_tokenizer(), **settings)
    worker = BackgroundWorker(
        wrapped, QuestionFormat("decoder", "{question}"), DocumentStore(folder), limits or Limits()
    )
    return TestClient(create_app(worker, "tiny", **options), base_url="http://127.0.0.1"), worker


@pytest.fixture
def client(tmp_path):
    client, _ = make_client(tmp_path / "library")
    with client:
        yield client


def parse_events(text):
    pairs = [part.split("\n") for part in text.strip().split("\n\n")]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in pairs]


def add_document(client, text=None, name="a book"):
    response = client.post("/api/documents", json={"name": name, "text": text or make_book()})
    assert response.status_code == 201, response.text
    return response.json()["id"]


def wait_until_ready(client, document_id):
    events = parse_events(client.get(f"/api/documents/{document_id}/progress").text)
    assert events[-1][1]["state"] == "ready", events
    return events


def ask(client, document_id, **body):
    return parse_events(client.post(f"/api/documents/{document_id}/answers", json=body).text)


def wait_for_running_answer(client):
    deadline = time.monotonic() + 10
    while client.get("/api/status").json()["answering"] < 1 and time.monotonic() < deadline:
        time.sleep(0.01)


def test_index_and_ask(client):
    document_id = add_document(client)
    last = wait_until_ready(client, document_id)[-1][1]
    assert last["done"] == last["of"] > 3 and last["tokens"] == 202
    events = ask(client, document_id, question="w3 w4", compare=True, new_tokens=6)
    assert events[0][0] == "asked" and events[-1][0] == "done"
    answer = events[-1][1]
    assert "".join(content for kind, content in events if kind == "text").strip() == answer["text"]
    with Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9) as u:
        memory = u.index(make_book())
        expected = u.generate(memory, prompt="w3 w4", max_new_tokens=6, do_sample=False, num_beams=1)
    assert "w3 w4 " + answer["text"] == expected.text
    provenance = answer["provenance"]
    assert "".join(token["text"] for token in provenance["tokens"]) == provenance["answer"]
    assert len(provenance["histogram"]) == 100 and provenance["passages"][0]["text"] in make_book()
    assert answer["truncated"] is not None and answer["stopped"] is None
    assert client.get(f"/api/documents/{document_id}/text").text == make_book()
    assert ask(client, document_id, new_tokens=2)[-1][0] == "done", "a summary"


def test_status(client):
    status = client.get("/api/status").json()
    assert set(status) == {"model", "version", "context_length", "limits", "answering", "indexing"}
    assert status["indexing"] == {"running": True, "restarts": 0, "error": None}
    assert status["model"] == "tiny" and status["context_length"] == WINDOW and status["answering"] == 0
    assert status["limits"]["question"] == 2000


def test_decoder_only_model(tmp_path):
    client, _ = make_client(tmp_path, model=tiny_decoder("llama"))
    with client:
        document_id = add_document(client)
        wait_until_ready(client, document_id)
        answer = ask(client, document_id, question="w3", compare=True, new_tokens=4)[-1][1]
        assert answer["provenance"]["tokens"] and answer["truncated"] is not None


def test_short_answer_is_checked_with_beams(tmp_path):
    wrapped = Unlimiformer(make("bart"), make_tokenizer(), window=WINDOW, top_k=9)
    worker = BackgroundWorker(
        wrapped, QuestionFormat("decoder", "{question}"), DocumentStore(tmp_path), Limits(), beams=3
    )
    with TestClient(create_app(worker, "tiny"), base_url="http://127.0.0.1") as client:
        document_id = add_document(client)
        wait_until_ready(client, document_id)
        memory, differing = Memory.load(worker.documents.memory_path(worker.documents.get(document_id))), []
        for question in (f"w{word}" for word in range(3, 30)):
            greedy, beam_search = (
                wrapped.generate(memory, prompt=question, num_beams=beams, max_new_tokens=6, do_sample=False).text
                for beams in (1, 3)
            )
            differing += [(question, greedy, beam_search)] if greedy != beam_search else []
        question, greedy, beam_search = differing[0]
        events = ask(client, document_id, question=question, new_tokens=6)
    assert f"{question} " + "".join(content for kind, content in events if kind == "text").strip() == greedy
    assert f"{question} {events[-1][1]['text']}" == beam_search
    assert events[-1][1]["provenance"]["answer"].strip() == events[-1][1]["text"]


def test_documents_survive_restart(tmp_path):
    client, _ = make_client(tmp_path)
    with client:
        indexed, removed = add_document(client, name="one"), add_document(client, name="two")
        wait_until_ready(client, indexed)
        wait_until_ready(client, removed)
        assert client.delete(f"/api/documents/{removed}").status_code == 204
    documents = DocumentStore(tmp_path)
    interrupted = documents.add("three", DocumentText(make_book(90)))
    documents.update(interrupted.id, state="reading")  # a process that was killed leaves this
    (tmp_path / "0123.part").mkdir()
    client, _ = make_client(tmp_path)
    with client:
        assert [document["name"] for document in client.get("/api/documents").json()] == ["one", "three"]
        wait_until_ready(client, interrupted.id)
        assert ask(client, indexed, question="w1", new_tokens=2)[-1][0] == "done"
    assert {path.name for path in tmp_path.iterdir()} == {indexed, interrupted.id}


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "<script>alert(1)</script>", "a\x00b", "..", "näm€ 🙂"])
def test_names_never_become_paths(tmp_path, name):
    client, _ = make_client(tmp_path / "inside" / "library")
    with client:
        document_ids = [add_document(client, name=name)]
        response = client.post("/api/files", files={"file": (name.replace("\x00", ""), make_book().encode())})
        document_ids.append(response.json()["id"])
        assert client.get("/api/documents").json()[0]["name"] == name
        for document_id in document_ids:
            wait_until_ready(client, document_id)
            assert client.delete(f"/api/documents/{document_id}").status_code == 204
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
def test_invalid_requests_are_explained(tmp_path, method, path, body, code):
    client, _ = make_client(tmp_path, Limits(document_bytes=2000))
    with client:
        response = client.request(method, path, json=body)
        assert response.status_code == code and response.text


def test_limits(tmp_path):
    client, worker = make_client(
        tmp_path, Limits(document_bytes=2000, documents=2, question=10, waiting=1, new_tokens=3)
    )
    with client:
        document_id = add_document(client, make_book(60))
        wait_until_ready(client, document_id)
        path = f"/api/documents/{document_id}/answers"
        assert client.post(path, json={"question": "w1 " * 9}).status_code == 422
        assert client.post(path, json={"question": " "}).status_code == 422
        answer = ask(client, document_id, question="w1", new_tokens=50)[-1][1]
        assert len(answer["text"].split()) <= 3
        assert client.post("/api/files", files={"file": ("x", b"\xff\xfe")}).status_code == 422
        assert client.post("/api/files", files={"file": ("x", b"w1 " * 1000)}).status_code == 413
        add_document(client, "w1")
        assert client.post("/api/documents", json={"name": "x", "text": "w1"}).status_code == 409
        with worker.model_lock.for_answer(threading.Event()):  # the model is busy with another answer
            first = threading.Thread(target=ask, args=(client, document_id), kwargs={"question": "w1"})
            first.start()
            wait_for_running_answer(client)
            assert client.post(path, json={"question": "w2"}).status_code == 429
        first.join()
        assert ask(client, document_id, question="w2")[-1][0] == "done"


def test_cancel_and_time_limit(tmp_path):
    client, worker = make_client(tmp_path)
    with client:
        document_id = add_document(client)
        wait_until_ready(client, document_id)
        document, cancelled = worker.documents.get(document_id), threading.Event()
        answer = worker.answer(document, "w1", lambda text: cancelled.set(), cancelled, compare=True, new_tokens=200)
        assert answer.stopped == "cancelled" and answer.truncated is None and len(answer.text.split()) < 20
        responses = []
        with worker.model_lock.for_answer(threading.Event()):  # the model is busy with another answer
            thread = threading.Thread(target=lambda: responses.append(ask(client, document_id, question="w1")))
            thread.start()
            wait_for_running_answer(client)
            (answer_id,) = client.app.state.answers
            assert client.delete(f"/api/answers/{answer_id}").status_code == 204
        thread.join()
        assert responses[-1][-1] == ("stopped", "cancelled") and not client.app.state.answers
    client, worker = make_client(tmp_path, Limits(seconds=1e-9))
    with client:
        assert ask(client, document_id, question="w1")[-1][1]["stopped"] == "out of time"


def test_offsets_agree_for_all_line_ends(client):
    text = "\ufeff" + make_book(80).replace(" w1", "\r\nw1").replace(" w2", "\rw2")
    document_id = add_document(client, text)
    wait_until_ready(client, document_id)
    stored = client.get(f"/api/documents/{document_id}/text").text
    assert "\r" not in stored and not stored.startswith("\ufeff")
    provenance = ask(client, document_id, question="w3", new_tokens=3)[-1][1]["provenance"]
    assert provenance["characters"] == len(stored) and provenance["passages"]
    for passage in provenance["passages"]:
        assert stored[passage["start"] : passage["end"]] == passage["text"]


async def read_first_event(app, path):
    """Request an endless stream and disconnect after its first event."""
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"host", b"127.0.0.1")]}
    received, event = asyncio.Event(), []

    async def receive():
        await received.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message.get("body"):
            event.append(message["body"].decode())
            received.set()

    request = asyncio.create_task(app(scope, receive, send))
    await asyncio.wait_for(received.wait(), 10)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    return event[0]


def test_one_stream_reports_all_documents(tmp_path):
    client, _ = make_client(tmp_path)
    with client:
        for document_id in [add_document(client, name=name) for name in ("one", "two")]:
            wait_until_ready(client, document_id)
        ((kind, documents),) = parse_events(asyncio.run(read_first_event(client.app, "/api/progress")))
        assert kind == "documents" and [document["state"] for document in documents] == ["ready", "ready"]
        assert all(document["done"] == document["of"] > 3 for document in documents)


async def post_endless_body(app, path):
    """Send a body without an end, part by part; return the status of the response and the number of parts read."""
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    parts, statuses = 0, []

    async def receive():
        nonlocal parts
        parts += 1
        assert parts < 1000, "it is read on and on"
        return {"type": "http.request", "body": b"x" * 10_000, "more_body": True}

    async def send(message):
        statuses.append(message.get("status"))

    await app(scope, receive, send)
    return statuses[0], parts


def test_large_body_is_refused_before_its_end(tmp_path):
    client, _ = make_client(tmp_path, Limits(document_bytes=2000))
    with client:
        status, parts = asyncio.run(post_endless_body(client.app, "/api/documents"))
        assert status == 413 and parts == 11, "the limit is 106,000 bytes"
        assert client.post("/api/documents", content=b"x" * 110_000).status_code == 413, "by its Content-Length"
    client, _ = make_client(tmp_path, Limits(document_bytes=2000), token="secret")
    with client:
        status, parts = asyncio.run(post_endless_body(client.app, "/api/documents"))
        assert status == 401 and parts == 0
        assert client.post("/api/documents", json={"name": "x", "text": "y"}).status_code == 401


def test_lone_surrogates_are_refused(client):
    for body in ('{"name": "\\ud800", "text": "w1"}', '{"name": "x", "text": "\\ud800"}', '{"\\ud800": 1}'):
        response = client.post("/api/documents", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 422 and response.json()["detail"]


@pytest.mark.parametrize("text", ["\ufeff", "\ufeff \r\n"])
def test_a_text_of_nothing_but_a_byte_order_mark_is_refused(client, text):
    refused = client.post("/api/documents", json={"name": "x", "text": text})
    assert refused.status_code == 422 and "x is empty; expected a text" in refused.json()["detail"]
    refused = client.post("/api/files", files={"file": ("x.txt", text.encode("utf-8"))})
    assert refused.status_code == 422
    refused = client.post("/v1/files", files={"file": ("x.txt", text.encode("utf-16-be"))})
    assert refused.status_code == 400
    assert client.get("/api/documents").json() == []


def test_questions_that_are_no_text_are_refused(client):
    document = add_document(client)
    wait_until_ready(client, document)
    headers = {"Content-Type": "application/json"}
    for question in ('"\\ud800"', '"\\ufeff"', '" \\ufeff\\n"'):
        body = f'{{"question": {question}}}'
        response = client.post(f"/api/documents/{document}/answers", content=body, headers=headers)
        assert response.status_code == 422, question
    for content in ('"\\ud800"', '[{"type": "text", "text": "\\udfff"}]'):
        body = f'{{"model": "tiny", "messages": [{{"role": "user", "content": {content}}}]}}'
        response = client.post("/v1/chat/completions", content=body, headers=headers)
        assert response.status_code == 400 and response.json()["error"]["message"], content
    response = client.post("/v1/completions", content='{"model": "tiny", "prompt": "\\ud800"}', headers=headers)
    assert response.status_code == 400


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 507), (errno.EMFILE, 503)])
def test_an_upload_that_the_disk_refuses_is_explained_and_leaves_nothing(tmp_path, monkeypatch, number, status):
    def refuse(_):
        raise OSError(number, os.strerror(number), str(tmp_path))

    client, _ = make_client(tmp_path)
    with client:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            text, file = {"name": "x", "text": "w1"}, {"file": ("x.txt", b"w1")}
            answers = [client.post("/api/documents", json=text), client.post("/api/files", files=file)]
            answers.append(client.post("/v1/files", files=file))
        for answer in answers:
            assert answer.status_code == status and os.strerror(number) in answer.text
            assert str(tmp_path) not in answer.text
        assert client.get("/api/documents").json() == [] and not list(tmp_path.iterdir())
        wait_until_ready(client, add_document(client))


def test_an_upload_that_cannot_be_put_aside_is_a_full_disk_too(client, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.SpooledTemporaryFile.write", refuse)
    for path in ("/api/files", "/v1/files"):
        answer = client.post(path, files={"file": ("x.txt", b"w1")})
        assert answer.status_code == 507 and "the server's disk is full" in answer.text


def test_uploads_at_the_same_moment_keep_the_limit(tmp_path):
    client, _ = make_client(tmp_path, Limits(documents=4))
    with client, ThreadPoolExecutor(12) as pool:
        answers = pool.map(lambda number: client.post("/api/documents", json={"name": "x", "text": "w1"}), range(12))
        assert sorted(answer.status_code for answer in answers) == [201] * 4 + [409] * 8


def test_damaged_metadata_are_shown_and_stop_nothing(tmp_path):
    client, _ = make_client(tmp_path)
    with client:
        bad, good = add_document(client, name="bad"), add_document(client, name="good")
        wait_until_ready(client, good)
    (tmp_path / bad / "document.json").write_text("")
    client, _ = make_client(tmp_path)
    with client:
        wait_until_ready(client, good)
        states = {document["id"]: document for document in client.get("/api/documents").json()}
        assert states[good]["state"] == "ready" and states[bad]["state"] == "failed"
        assert "document.json cannot be used" in states[bad]["error"]
        assert client.get("/v1/files").status_code == 200
        assert ask(client, good, question="w1", new_tokens=2)[-1][0] == "done"
        assert client.delete(f"/api/documents/{bad}").status_code == 204


@pytest.mark.parametrize("path", ["api", "v1"])
def test_an_answer_whose_document_was_deleted_says_so(tmp_path, path):
    client, worker = make_client(tmp_path)
    with client:
        document = add_document(client, name="The Book")
        wait_until_ready(client, document)
        answers = []

        def ask_it():
            if path == "api":
                answers.append(client.post(f"/api/documents/{document}/answers", json={"question": "w1 w2"}).text)
            else:
                part = {"type": "file", "file": {"file_id": f"file-{document}"}}
                content = [part, {"type": "text", "text": "w1 w2?"}]
                body = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
                answers.append(client.post("/v1/chat/completions", json=body).text)

        with worker.model_lock.for_answer(threading.Event()):  # the model is busy with another answer
            thread = threading.Thread(target=ask_it)
            thread.start()
            wait_for(lambda: worker.model_lock.waiting_answers, "the question")
            assert client.delete(f"/api/documents/{document}").status_code == 204
        thread.join()
        assert "The Book was deleted while it was asked" in answers[0]
        assert not list(tmp_path.glob("0*")) and not worker._memories._open


def test_document_deleted_while_waiting_leaves_no_files(tmp_path):
    client, worker = make_client(tmp_path)
    with client:
        with worker.model_lock.for_answer(threading.Event()):
            document_id = add_document(client)
            time.sleep(0.1)
            assert client.delete(f"/api/documents/{document_id}").status_code == 204
        other = add_document(client)
        wait_until_ready(client, other)
    assert {path.name for path in tmp_path.iterdir()} == {other}


def test_token_is_required(tmp_path):
    client, _ = make_client(tmp_path, token="secret", host=None)
    with client:
        assert client.get("/api/documents").status_code == 401
        assert client.get("/api/documents", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/api/documents", headers={"Authorization": "Bearer secret"}).json() == []
        assert client.get("/").status_code == 200, "the page asks for it"
        for path in ("/docs", "/openapi.json", "/redoc", "/docs/oauth2-redirect", "/%64ocs", "/v1/models"):
            assert client.get(path).status_code == 401, path
            answer = client.get(path, headers={"Authorization": "Bearer secret"})
            assert answer.status_code in (200, 404) and client.head(path).status_code == 401


def test_other_sites_are_refused(client):
    body = {"name": "x", "text": "w1"}
    assert client.post("/api/documents", json=body, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.get("/api/documents", headers={"Host": "evil.example"}).status_code == 400
    page = client.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for path in ("/", "/page.js", "/page.css", "/highlight.js"):
        assert "http" not in client.get(path).text.replace("http://www.w3.org/2000/svg", ""), "nothing from outside"
    assert client.get("/openapi.json").json()["info"]["title"] == "Unlimiformer"


def test_failed_document_reports_its_error(tmp_path, monkeypatch):
    client, worker = make_client(tmp_path)
    fail_for_bad_texts(monkeypatch, worker, RuntimeError("no luck"))
    with client:
        bad, good = add_document(client, "bad w1"), add_document(client, "w2 w3")
        wait_until_ready(client, good)
        document = client.get(f"/api/documents/{bad}").json()
        assert document["state"] == "failed" and "no luck" in document["error"]
        assert client.post(f"/api/documents/{bad}/answers", json={"question": "w1"}).status_code == 409


def test_an_uploaded_pdf_is_cited_by_page(client):
    words = make_book(120).split()
    pages = [set_column([" ".join(words[start : start + 40])], 72, 760, 450) for start in (0, 40, 80)]
    response = client.post("/api/files", files={"file": ("book.pdf", make_pdf(pages))})
    assert response.status_code == 201, response.text
    wait_until_ready(client, response.json()["id"])
    done = ask(client, response.json()["id"], question="w3 w4", new_tokens=6)[-1]
    assert done[0] == "done"
    assert done[1]["provenance"]["passages"][0]["location"] in {"p. 1", "p. 2", "p. 3"}


def test_a_file_without_text_is_refused_with_a_reason(client):
    response = client.post("/api/files", files={"file": ("scan.pdf", make_pdf([[], []]))})
    assert response.status_code == 422 and "it seems to be scanned" in response.json()["detail"]
    assert client.get("/api/documents").json() == []


def test_several_documents_are_asked_together(client):
    first, second = add_document(client, make_book(60), "first"), add_document(client, make_book(90), "second")
    wait_until_ready(client, first)
    wait_until_ready(client, second)
    body = {"documents": [first, second], "question": "w3 w4", "new_tokens": 6}
    kind, answer = parse_events(client.post("/api/answers", json=body).text)[-1]
    assert kind == "done"
    assert [place["id"] for place in answer["documents"]] == [first, second]
    assert answer["documents"][1]["start"] == len(make_book(60)) + 2
    assert all(passage["location"] in ("first", "second") for passage in answer["provenance"]["passages"])
    unknown = client.post("/api/answers", json={**body, "documents": ["0" * 16]})
    assert unknown.status_code == 404


def test_a_question_that_refers_to_an_earlier_one(client):
    document = add_document(client)
    wait_until_ready(client, document)
    turns = [{"question": "Who is w5?", "answer": "w6"}]
    answer = ask(client, document, question="Where is he?", turns=turns, new_tokens=6)[-1][1]
    assert answer["question"] == "Who is w5? w6 Where is he?"
    assert ask(client, document, question="Where is w7 now?", turns=[], new_tokens=6)[-1][1]["question"] is None
