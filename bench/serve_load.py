"""A server under load: `python bench/serve_load.py [seconds] [clients]`.

Five scenes of plays, twenty clients that ask without a pause; then the server is killed under load and started again.
Counts errors, lost documents and what the process holds. Results go to bench/results/serve_load.json.
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
RESULTS = Path(__file__).with_name("results") / "serve_load.json"
QUESTIONS = ("Who speaks here?", "Where is the king?", "What does the messenger say?", "Who is dead?")


def main(seconds: int = 120, clients: int = 20) -> None:
    """Two halves, with a kill between them."""
    get_model(MODEL)
    with tempfile.TemporaryDirectory() as folder:
        process, url = _start(folder)
        ids = [_add(url, play) for play in PLAYS]
        while {each["state"] for each in httpx.get(f"{url}/api/documents").json()} != {"ready"}:
            time.sleep(0.5)
        first = _load(url, ids, seconds, clients, process.pid)
        late = threading.Thread(target=_load, args=(url, ids, 5, clients, process.pid))
        late.start()
        time.sleep(2)
        process.kill()
        process.wait()
        late.join()
        process, url = _start(folder)
        kept = [each["id"] for each in httpx.get(f"{url}/api/documents").json() if each["state"] == "ready"]
        again = _load(url, ids, 10, clients, process.pid)
        process.kill()
    told = {"clients": clients, "documents": len(ids), "seconds": seconds, **first}
    told |= {"documents_after_a_kill": len(set(kept) & set(ids)), "errors_after_the_restart": again["errors"]}
    print(json.dumps(told, indent=1))
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")


def _start(folder: str) -> tuple[subprocess.Popen, str]:
    command = [sys.executable, "-m", "unlimiformer", "serve", "--model", MODEL, "--folder", folder, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if found := re.search(r"http://\S+:\d+", line):
            return process, found[0]
    raise SystemExit("the server did not start")


def _add(url: str, play: str) -> str:
    lines = get_text(f"shakespeare/{play}").read_text().split("\n")[200:500]
    return httpx.post(f"{url}/api/documents", json={"name": play, "text": "\n".join(lines)}).json()["id"]


def _load(url: str, ids: list[str], seconds: float, clients: int, pid: int) -> dict:
    times, errors, memory = [], [], []
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        with httpx.Client(base_url=url, timeout=300) as http:
            turn = number
            while time.monotonic() < end:
                started = time.monotonic()
                body = {"question": QUESTIONS[turn % len(QUESTIONS)], "new_tokens": 16}
                try:
                    answer = http.post(f"/api/documents/{ids[turn % len(ids)]}/answers", json=body)
                    if answer.status_code != 200 or "event: done" not in answer.text:
                        errors.append(answer.text[:200])
                except httpx.HTTPError as error:
                    errors.append(repr(error))
                times.append(time.monotonic() - started)
                turn += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
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


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
