"""What `docs/scale.md` reckons with, measured: `python bench/scale.py`. Plays are indexed and asked.

Every step is a process of its own, as a user runs it, on one core, so that times can be shared out among cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from unlimiformer.batch import find_documents
from unlimiformer.batch import runner as scheduling
from unlimiformer.batch.pool import Done, Ready
from unlimiformer.hub import TEXTS, get_text
from unlimiformer.hub.loading import load
from unlimiformer.text.tokenization import truncate_text
from unlimiformer.utils.system import peak_memory

RESULTS = Path(__file__).parent / "results" / "scale.json"
ANSWER = 32


def run(*arguments: str) -> dict:
    """What a command tells."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "unlimiformer", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def measure(text: Path, memory: Path, model: str) -> list[dict]:
    """Indexing once, and answering from the exact store and from cells."""
    rows = []
    for store in ("exact", "cells"):
        made = run("index", str(text), "-o", str(memory), "--model", model, "--store", store)
        length = ("--max-new-tokens", str(ANSWER), "--min-new-tokens", str(ANSWER))
        told = run("generate", str(memory), "--model", model, "--prompt", "Who is the king?", *length)
        rows.append(
            {
                "tokens": made["tokens"],
                "store": store,
                "index_seconds": made["seconds"],
                "windows_encoded": made["windows"] - made["windows_kept"],
                "disk_bytes": made["disk_bytes"],
                "index_peak_bytes": made["peak_bytes"],
                "answer_seconds": told["seconds_per_token"] * ANSWER,
                "answer_peak_bytes": told["peak_bytes"],
                "search": made["search"],
            }
        )
        print(rows[-1], flush=True)
    return rows


class Nobody:
    """Workers that have done everything at once: what is left is what the runner itself takes."""

    def __init__(self) -> None:
        self._news: list = []

    def start(self) -> int:
        """One is enough."""
        self._news.append(Ready(0, {"model_digest": "none"}))
        return 0

    def give(self, worker: int, documents: list) -> None:
        """Done."""
        row = {"answers": [{"question": "Who?", "answer": "Nobody"}]}
        self._news.append(Done(worker, [{"id": d.id, "digest": d.digest, **row} for d in documents]))

    def events(self, seconds: float) -> list:
        """At once."""
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Nothing to do."""


def runner(documents: int) -> None:
    """Runs that many documents with nobody, and again with all of them done; prints what it took."""
    scheduling.create_pool = lambda *_: (Nobody(), 1)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as scratch:
        source, out = Path(scratch) / "in.jsonl", Path(scratch) / "out.jsonl"
        with source.open("w") as file:
            file.writelines(f'{{"id": {n}, "document": "text number {n}"}}\n' for n in range(documents))
        work, times = scheduling.Job("ask", "none", questions=("Who?",)), []
        for _ in range(2):
            started = time.perf_counter()
            scheduling.run(find_documents(source), out, work)
            times.append(time.perf_counter() - started)
        told = {"documents": documents, "seconds": times[0], "again_seconds": times[1], "peak_bytes": peak_memory()}
        print(json.dumps({**told, "output_bytes": out.stat().st_size}))


def main() -> None:
    """Measures and keeps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runner", type=int, help="only the runner, with so many documents")
    parser.add_argument("--model", default="flan-t5-small-answers")
    parser.add_argument("--lengths", default="10000,100000,1000000")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.runner is not None:
        return runner(given.runner)
    alone = [sys.executable, __file__, "--runner", "1000000"]
    without = json.loads(subprocess.run(alone, capture_output=True, text=True, check=True).stdout)
    words = "\n\n".join(get_text(name).read_text(encoding="utf-8") for name in TEXTS)
    _, tokenizer = load(given.model)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for tokens in map(int, given.lengths.split(",")):
            text = Path(scratch) / f"{tokens}.txt"
            text.write_text(truncate_text(words, tokenizer, tokens), encoding="utf-8")
            rows += measure(text, Path(scratch) / f"{tokens}.memory", given.model)
            told = {"model": given.model, "cores": 1, "answer_tokens": ANSWER, "rows": rows, "runner": without}
            given.results.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
