"""Time to take the text out of documents, and what damaged copies of them do.

`python bench/formats.py FILES` prints a line for each file. `--damage 1000` then changes or cuts that many copies of
each: every one must give a text or an `InputError`, within `--seconds`, and the process must not grow by more than
`--megabytes`. `-o FILE` keeps the results as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

from unlimiformer.errors import InputError
from unlimiformer.text.formats import extract


def main() -> None:
    """Measure every file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--damage", type=int, default=0, help="damaged copies of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=20, help="for one file")
    parser.add_argument("--megabytes", type=int, default=500, help="by which the process may grow")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = [measure(file) for file in options.files]
    print("| file | MB | characters | seconds | seconds per MB |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['file']} | {row['megabytes']:.2f} | {row['characters']:,} | {row['seconds']:.2f} |", end="")
        print(f" {row['seconds'] / row['megabytes']:.2f} |")
    if options.damage:
        for row, file in zip(rows, options.files, strict=True):
            row["damaged"] = damage(file, options)
            print(f"{file.name}: {row['damaged']}", flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


def measure(file: Path) -> dict[str, Any]:
    """The best time of three, after one extraction that loads what is needed."""
    data = file.read_bytes()
    extract(data, file.name, file.suffix)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        text = extract(data, file.name, file.suffix).text
        seconds.append(time.perf_counter() - started)
    return {"file": file.name, "megabytes": len(data) / 1e6, "characters": len(text), "seconds": min(seconds)}


def damage(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Extract damaged copies; anything but a text or an `InputError` is an exception of this script."""
    generator, data = random.Random(options.seed), file.read_bytes()
    counts, slowest = {"text": 0, "message": 0}, 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(options.damage):
        copy = _damaged(data, generator)
        signal.alarm(options.seconds)  # ends the script: a file that takes longer is a defect
        started = time.perf_counter()
        try:
            extract(copy, "damaged", file.suffix)
            counts["text"] += 1
        except InputError:
            counts["message"] += 1
        except BaseException:
            print(f"{file.name}, copy {number} of seed {options.seed}")
            raise
        signal.alarm(0)
        slowest = max(slowest, time.perf_counter() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if grown > options.megabytes:
        raise SystemExit(f"{file.name}: the process grew by {grown:.0f} MB; expected at most {options.megabytes}")
    return {**counts, "slowest_seconds": round(slowest, 3), "grown_megabytes": round(grown)}


def _damaged(data: bytes, generator: random.Random) -> bytes:
    """A copy with some bytes changed, a part repeated or left out, or its end cut off."""
    copy = bytearray(data)
    for _ in range(generator.choice((1, 3, 10, 100))):
        copy[generator.randrange(len(copy))] = generator.randrange(256)
    kind = generator.randrange(4)
    start = generator.randrange(len(copy))
    end = min(len(copy), start + generator.randrange(1, 2000))
    if kind == 1:
        del copy[start:]
    elif kind == 2:
        del copy[start:end]
    elif kind == 3:
        copy[start:start] = copy[start:end] * generator.choice((1, 10))
    return bytes(copy)


if __name__ == "__main__":
    main()
