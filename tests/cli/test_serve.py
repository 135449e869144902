"""The command `serve` as a process: its output, what it refuses, and that a kill loses no document."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest
from conftest import make_book, make_tokenizer, save
from tiny_models import make
from warm_cli import unlimiformer


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models"), make("t5"), make_tokenizer())


@contextmanager
def running_server(model_folder, library, *options):
    command = ["serve", "--model", model_folder, "--folder", str(library), "--port", "0", "--window", "32", *options]
    process = subprocess.Popen([sys.executable, "-m", "unlimiformer", *command], stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if address := re.search(r"http://\S+:\d+", line):
                break
        else:
            raise AssertionError("the server ended before it printed its address")
        yield process, httpx.Client(base_url=address[0], timeout=60)
    finally:
        process.kill()
        process.wait()


def refused_server(model_folder, library, *options):
    """Run a server that must refuse to start; return its message on one line."""
    done = unlimiformer("serve", "--model", model_folder, "--folder", str(library), *options)
    assert done.returncode == 2, done.stderr.decode()
    return " ".join(done.stderr.decode().split())


def get_documents(client):
    return {document["id"]: document for document in client.get("/api/documents").json()}


def wait_until_ready(client, document_id):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and get_documents(client)[document_id]["state"] != "ready":
        time.sleep(0.02)
    return get_documents(client)[document_id]


def test_kill_loses_no_document(model_folder, tmp_path):
    with running_server(model_folder, tmp_path / "library") as (process, client):
        short = client.post("/api/documents", json={"name": "one", "text": make_book(300)}).json()["id"]
        assert wait_until_ready(client, short)["state"] == "ready"
        long = client.post("/api/documents", json={"name": "two", "text": make_book(8_000)}).json()["id"]
        while get_documents(client)[long]["state"] == "waiting":
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with running_server(model_folder, tmp_path / "library") as (process, client):
        assert wait_until_ready(client, short)["state"] == "ready"
        assert wait_until_ready(client, long)["tokens"] == 8_002
        events = client.post(f"/api/documents/{long}/answers", json={"question": "w3", "new_tokens": 3}).text
        answer = json.loads(events.strip().split("data: ")[-1])
        assert answer["provenance"]["characters"] == len(make_book(8_000))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)


def test_other_machines_need_a_token(model_folder, tmp_path):
    message = refused_server(model_folder, tmp_path, "--host", "0.0.0.0")
    assert "which other machines can reach; give a token" in message
    with running_server(model_folder, tmp_path / "library", "--host", "0.0.0.0", "--token", "secret") as (_, client):
        client.base_url = str(client.base_url).replace("0.0.0.0", "127.0.0.1")
        assert client.get("/api/documents").status_code == 401
        assert client.get("/api/documents", headers={"Authorization": "Bearer secret"}).json() == []


def test_port_and_folder_in_use(model_folder, tmp_path):
    with running_server(model_folder, tmp_path / "one") as (_, client):
        message = refused_server(model_folder, tmp_path / "two", "--port", str(client.base_url.port))
        assert "cannot listen on 127.0.0.1" in message and "--port" in message
        message = refused_server(model_folder, tmp_path / "one", "--port", "0")
        assert f"another server is using {tmp_path / 'one'} for its documents" in message and "--folder" in message


def test_folder_that_cannot_be_written(model_folder, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    message = refused_server(model_folder, tmp_path / "file" / "library", "--port", "0")
    assert f"cannot write to {tmp_path / 'file' / 'library'}: Not a directory" in message


def test_missing_package_is_named(model_folder, tmp_path):
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        f"sys.argv = ['unlimiformer', 'serve', '--model', {model_folder!r}, '--folder', {str(tmp_path)!r}]\n"
        "from unlimiformer.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "the server needs the package 'fastapi'" in done.stderr and "unlimiformer-hf[serve]" in done.stderr
