"""What `docs/scale.md` reckons with, measured: `python bench/scale.py`. Plays are indexed up to a million tokens, and asked.

Every step is a process of its own, as a user runs it, on one core, so that times can be shared out among cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from unlimiformer.catalogue import TEXTS, get_text
from unlimiformer.loading import load
from unlimiformer.tokenizing import first_tokens

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


def main() -> None:
    """Measures and keeps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="flan-t5-small-answers")
    parser.add_argument("--lengths", default="10000,100000,1000000")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    words = "\n\n".join(get_text(name).read_text(encoding="utf-8") for name in TEXTS)
    _, tokenizer = load(given.model)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for tokens in map(int, given.lengths.split(",")):
            text = Path(scratch) / f"{tokens}.txt"
            text.write_text(first_tokens(words, tokenizer, tokens), encoding="utf-8")
            rows += measure(text, Path(scratch) / f"{tokens}.memory", given.model)
            told = {"model": given.model, "cores": 1, "answer_tokens": ANSWER, "rows": rows}
            given.results.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
