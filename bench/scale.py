"""Measures the rates that docs/scale.md calculates with: indexing and answering, and the batch runner alone.

Run `python bench/scale.py`; it takes about an hour. After an interruption the same command continues with the next
length. Results go to bench/results/scale.json. `--help` lists the options.

Every step runs `unlimiformer` in a process of its own on one core, so that times can be divided among cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from partial_run import PartialRun

from unlimiformer.batch import find_documents, runner
from unlimiformer.batch.pool import Done, Ready
from unlimiformer.hub import TEXTS, get_text
from unlimiformer.hub.loading import load
from unlimiformer.text.tokenization import truncate_text
from unlimiformer.utils.system import peak_memory

ANSWER_TOKENS = 32
RUNNER_DOCUMENTS = 1_000_000
STORES = {"exact": "exact", "ivf": "cells"}  # the name in the results, and the value of --store


def run_command(*arguments: str) -> dict:
    """Run `unlimiformer` on one core, show its progress, and return what it prints as JSON."""
    command = [sys.executable, "-m", "unlimiformer", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"failed: {' '.join(command)}")
    return json.loads(done.stdout)


def measure_text(text: Path, memory: Path, model: str) -> list[dict]:
    """Index a text, and answer from the exact store and from the ivf store, which is added to the same memory."""
    rows = []
    for store, option in STORES.items():
        index = run_command("index", str(text), "-o", str(memory), "--model", model, "--store", option)
        length = ("--max-new-tokens", str(ANSWER_TOKENS), "--min-new-tokens", str(ANSWER_TOKENS))
        answer = run_command("generate", str(memory), "--model", model, "--prompt", "Who is the king?", *length)
        rows.append(
            {
                "tokens": index["tokens"],
                "store": store,
                "index_seconds": index["seconds"],
                "windows_encoded": index["windows"] - index["windows_kept"],
                "disk_bytes": index["disk_bytes"],
                "index_peak_bytes": index["peak_bytes"],
                "answer_seconds": answer["seconds_per_token"] * ANSWER_TOKENS,
                "answer_peak_bytes": answer["peak_bytes"],
                "search": index["search"],
            }
        )
        print(rows[-1], flush=True)
    return rows


class InstantPool:
    """A worker pool whose one worker answers at once, so that only the time of the runner itself is left."""

    def __init__(self) -> None:
        self._events: list = []

    def start(self) -> int:
        """Start the worker, which is ready at once."""
        self._events.append(Ready(0, {"model_digest": "none"}))
        return 0

    def submit(self, worker: int, documents: list) -> None:
        """Answer about the documents with a constant."""
        row = {"answers": [{"question": "Who?", "answer": "Nobody"}]}
        self._events.append(Done(worker, [{"id": d.id, "digest": d.digest, **row} for d in documents]))

    def events(self, seconds: float) -> list:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Do nothing, as there are no processes."""


def measure_runner(documents: int) -> None:
    """Run that many documents with instant workers, then again when all are done; print the times as JSON."""
    runner.create_pool = lambda *_: (InstantPool(), 1)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as scratch:
        source, output = Path(scratch) / "in.jsonl", Path(scratch) / "out.jsonl"
        with source.open("w") as file:
            file.writelines(f'{{"id": {n}, "document": "text number {n}"}}\n' for n in range(documents))
        job, times = runner.Job("ask", "none", questions=("Who?",)), []
        for _ in range(2):
            started = time.perf_counter()
            runner.run(find_documents(source), output, job)
            times.append(time.perf_counter() - started)
        fields = {"documents": documents, "seconds": times[0], "again_seconds": times[1], "peak_bytes": peak_memory()}
        print(json.dumps({**fields, "output_bytes": output.stat().st_size}))


def main() -> None:
    """Parse the options, measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", type=int, metavar="DOCUMENTS", help="measure only the runner, and print the times")
    parser.add_argument("--model", default="flan-t5-small-answers")
    parser.add_argument("--lengths", default="10000,100000,1000000", help="tokens of the texts")
    parser.add_argument("--results", type=Path, help="write here instead of bench/results/scale.json")
    options = parser.parse_args()
    if options.runner is not None:
        measure_runner(options.runner)
        return
    lengths = [int(length) for length in options.lengths.split(",")]
    run = PartialRun("scale", model=options.model, lengths=lengths)
    if not run.rows:
        print(f"runner: {RUNNER_DOCUMENTS:,} documents", flush=True)
        command = [sys.executable, __file__, "--runner", str(RUNNER_DOCUMENTS)]
        run.add({"runner": json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)})
    words = "\n\n".join(get_text(name).read_text(encoding="utf-8") for name in TEXTS)
    _, tokenizer = load(options.model)
    for tokens in lengths[len(run.rows) - 1 :]:
        with tempfile.TemporaryDirectory() as scratch:
            text = Path(scratch) / f"{tokens}.txt"
            text.write_text(truncate_text(words, tokenizer, tokens), encoding="utf-8")
            run.add({"rows": measure_text(text, Path(scratch) / f"{tokens}.memory", options.model)})
    first, *measured = run.rows
    rows = [row for length in measured for row in length["rows"]]
    settings = {"model": options.model, "cores": 1, "answer_tokens": ANSWER_TOKENS}
    run.finish({**settings, "rows": rows, "runner": first["runner"]}, options.results)


if __name__ == "__main__":
    main()
