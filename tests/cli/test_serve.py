"""`serve` as a process: what it prints, what it refuses, and that a kill loses nothing."""

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
from test_cli import run
from tiny_models import make


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models"), make("t5"), make_tokenizer())


@contextmanager
def _serving(folder, library, *options):
    command = ["serve", "--model", folder, "--folder", str(library), "--port", "0", "--window", "32", *options]
    process = subprocess.Popen([sys.executable, "-m", "unlimiformer", *command], stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if found := re.search(r"http://\S+:\d+", line):
                break
        else:
            raise AssertionError("it ended")
        yield process, httpx.Client(base_url=found[0], timeout=60)
    finally:
        process.kill()
        process.wait()


def _documents(client):
    return {each["id"]: each for each in client.get("/api/documents").json()}


def _wait(client, number):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and _documents(client)[number]["state"] != "ready":
        time.sleep(0.02)
    return _documents(client)[number]


def test_a_kill_loses_no_document(folder, tmp_path):
    with _serving(folder, tmp_path / "library") as (process, client):
        done = client.post("/api/documents", json={"name": "one", "text": make_book(300)}).json()["id"]
        assert _wait(client, done)["state"] == "ready"
        long = client.post("/api/documents", json={"name": "two", "text": make_book(8_000)}).json()["id"]
        while _documents(client)[long]["state"] == "waiting":
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with _serving(folder, tmp_path / "library") as (process, client):
        assert _documents(client)[done]["state"] == "ready"
        assert _wait(client, long)["tokens"] == 8_002
        told = client.post(f"/api/documents/{long}/answers", json={"question": "w3", "new_tokens": 3}).text
        last = json.loads(told.strip().split("data: ")[-1])
        assert last["provenance"]["characters"] == len(make_book(8_000))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)


def test_other_machines_need_a_token(folder, tmp_path):
    done = run("serve", "--model", folder, "--folder", str(tmp_path), "--host", "0.0.0.0", code=2)
    assert b"which other machines can reach; give a token" in done.stderr
    with _serving(folder, tmp_path / "library", "--host", "0.0.0.0", "--token", "secret") as (_, client):
        client.base_url = str(client.base_url).replace("0.0.0.0", "127.0.0.1")
        assert client.get("/api/documents").status_code == 401
        assert client.get("/api/documents", headers={"Authorization": "Bearer secret"}).json() == []


def test_a_port_in_use_is_named(folder, tmp_path):
    with _serving(folder, tmp_path / "one") as (_, client):
        port = str(client.base_url.port)
        done = run("serve", "--model", folder, "--folder", str(tmp_path / "two"), "--port", port, code=2)
        assert b"cannot listen on 127.0.0.1" in done.stderr
