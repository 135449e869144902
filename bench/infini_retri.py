"""Answers questions with InfiniRetri (the package `infini-retri`) on the weights that ours is measured with.

Run `python bench/infini_retri.py ITEMS.jsonl OUTPUT.csv --model FOLDER --environment FOLDER`. Every line of ITEMS is a
JSON object with "key", "document", "question" and "references", a list of right answers. A row is appended to OUTPUT
after every answer, and keys that have a row are skipped: the same command continues after an interruption. Give another
OUTPUT for another model.

The package runs in an environment of its own, which is made in a folder if it is not there: this script starts itself
with the Python of that environment as a worker, and exchanges lines of JSON with it.

How the package is used:

- The settings are the defaults that its page describes: windows of 1,024 tokens, of which the sentences with the best
  300 tokens are kept, for answers of 8 tokens.
- The model is loaded with `attn_implementation="eager"`, the only one that the package accepts, and in float32. The
  attention of all layers is kept for every window: with Qwen2.5-Coder-0.5B the worker needs about 10 GB.
- The package always passes a temperature to `generate` and never says whether to sample; the model's generation config
  says so then. It is set to `do_sample=False`, so that answers are greedy.
- The prompt has our wording. The package finds text and question in it by the empty lines around them, which therefore
  stand where our prompt has a line break or a space; and it gives an empty system message, where ours leaves the one of
  the chat template.
- If it does not find them it prints a message and raises an error. Such a question gets no row, and is counted.
- Every question reads the whole document again.
"""

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REQUIREMENTS = (
    ("torch==2.13.0",),
    # the last five are imported by the package, which does not declare them
    ("infini-retri==0.0.3", "transformers==5.23.0", "tiktoken", "scipy", "seaborn", "matplotlib", "tqdm"),
)
SETTINGS = {"window_length": 1024, "topk": 300, "answer_length": 8}
PROMPT = "Text:\n\n{context}\n\nQuestion:\n\n{question}\n\n"
NEW_TOKENS = 64
FIELDS = ("key", "question", "prediction", "seconds", "f1")

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""From an item to its "prediction" and "seconds", or to an "error"."""


def main() -> None:
    """Answer what has no row yet, and print the mean F1."""
    parser = argparse.ArgumentParser(description="Answer questions with InfiniRetri, and measure F1.")
    parser.add_argument("items", type=Path, help="JSONL with key, document, question and references")
    parser.add_argument("output", type=Path, help="CSV file; an existing one is continued")
    parser.add_argument("--model", type=Path, required=True, help="folder of a decoder-only model")
    parser.add_argument("--environment", type=Path, required=True, help="folder of the package's own environment")
    arguments = parser.parse_args()
    if not (arguments.model / "config.json").exists():
        parser.error(f"{arguments.model} has no config.json; expected the folder of a model")
    try:
        items = read_items(arguments.items)
        rows = read_rows(arguments.output)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    failed = []
    if any(item["key"] not in rows for item in items):
        with start_worker(make_environment(arguments.environment), arguments.model) as ask:
            failed = answer_missing(items, rows, arguments.output, ask)
    print(summary(items, rows, failed))


def read_items(path: Path) -> list[dict[str, Any]]:
    """Read and check all items."""
    items, keys = [], set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        item = json.loads(line)
        texts = [item.get(name) for name in ("key", "document", "question")]
        if not all(isinstance(text, str) and text.strip() for text in texts) or not item.get("references"):
            raise ValueError(f"{path}, line {number}: expected key, document and question as texts, and references")
        if item["key"] in keys:
            raise ValueError(f"{path}, line {number}: the key {item['key']!r} occurs twice; expected different keys")
        keys.add(item["key"])
        items.append(item)
    return items


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Read the rows of an earlier run by their keys; a last row that was not written completely is removed."""
    if not path.exists() or path.stat().st_size == 0:
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        text = file.read()
    header, *rows = csv.reader(io.StringIO(text))
    if tuple(header) != FIELDS:
        raise ValueError(f"{path} has the columns {', '.join(header)}; expected {', '.join(FIELDS)}: give a new file")
    if rows and (len(rows[-1]) < len(FIELDS) or not text.endswith("\n")):
        rows.pop()
        part = path.with_name(f"{path.name}.part")
        with part.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([FIELDS, *rows])
        os.replace(part, path)
    return {row["key"]: row for row in (dict(zip(FIELDS, row, strict=True)) for row in rows)}


def answer_missing(
    items: list[dict[str, Any]], rows: dict[str, dict[str, Any]], output: Path, ask: Ask
) -> list[dict[str, Any]]:
    """Ask for what is missing in `rows`, and append it there and to the output; return the items that failed."""
    from unlimiformer.evaluation.metrics import METRICS  # not in the worker, whose environment does not have it

    metric, failed = METRICS["f1"](), []
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        for item in items:
            if item["key"] in rows:
                continue
            answer = ask({"document": item["document"], "question": item["question"]})
            if "error" in answer:
                print(f"{item['key']}: {answer['error']}", file=sys.stderr, flush=True)
                failed.append(item)
                continue
            scores = metric.scores([answer["prediction"]], [item["references"]])
            row = {"key": item["key"], "question": item["question"], **answer, "f1": scores["f1"][0]}
            writer.writerow(row)
            file.flush()
            os.fsync(file.fileno())
            rows[item["key"]] = row
            print(json.dumps(row, ensure_ascii=False), flush=True)
    return failed


def summary(items: list[dict[str, Any]], rows: dict[str, dict[str, Any]], failed: list[dict[str, Any]]) -> str:
    """Return the mean F1 and the mean time of the items that have an answer."""
    answered = [rows[item["key"]] for item in items if item["key"] in rows]
    if not answered:
        return f"0 of {len(items)} questions answered, {len(failed)} failed"
    f1, seconds = (sum(float(row[name]) for row in answered) / len(answered) for name in ("f1", "seconds"))
    line = f"F1 {f1:.2f}, {seconds:.1f} s per question, {len(answered)} of {len(items)} questions answered"
    return f"{line}, {len(failed)} failed and are not counted" if failed else line


def make_environment(folder: Path) -> Path:
    """Make the package's environment if it is not complete; return its Python."""
    python, ready = folder / "bin" / "python", folder / "requirements.json"
    requirements = json.dumps(REQUIREMENTS)
    if not ready.exists() or ready.read_text() != requirements:
        print(f"installing InfiniRetri in {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for names in REQUIREMENTS:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *names], check=True)
        ready.write_text(requirements)
    return python


@contextmanager
def start_worker(python: Path, model: Path) -> Iterator[Ask]:
    """Start a worker that has loaded the model, and stop it at the end."""
    # -I leaves the folder of this script out of the path: the script has the name of the package
    command = [python, "-I", Path(__file__).resolve(), "--worker", model.resolve()]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    with subprocess.Popen(command, **pipes, env={**os.environ, "TQDM_DISABLE": "1"}) as process:

        def ask(item: dict[str, Any]) -> dict[str, Any]:
            try:
                print(json.dumps(item), file=process.stdin, flush=True)
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            if not line:
                sys.exit("the worker ended; its message is above. The same command continues")
            return json.loads(line)

        yield ask


def run_worker(model_folder: str) -> None:
    """Answer the items that come as lines of JSON, with the package."""
    import torch
    from infini_retri import InfiniRetri
    from transformers import AutoModelForCausalLM, AutoTokenizer

    answers, sys.stdout = sys.stdout, sys.stderr  # the package prints messages
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager", dtype=torch.float32)
    model.generation_config.do_sample = False
    retriever = InfiniRetri(model, AutoTokenizer.from_pretrained(model_folder), **SETTINGS)
    for line in sys.stdin:
        item, started = json.loads(line), time.perf_counter()
        try:
            text = retriever.generate(item["document"], item["question"], PROMPT, max_new_tokens=NEW_TOKENS)
            answer = {"prediction": text, "seconds": round(time.perf_counter() - started, 3)}
        except Exception as error:  # any error of the package: the next question may work
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        run_worker(sys.argv[2])
    else:
        main()
