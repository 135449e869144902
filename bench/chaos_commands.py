"""The commands that chaos.py disturbs: their arguments on tiny random models, and what their outcome consists of."""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # for the tiny models

_TEXTS = 4  # of the server


@dataclass(frozen=True)
class Inputs:
    """Models, texts and data in one folder; `size` is the share of their usual length."""

    folder: Path
    size: float = 1.0

    def __getattr__(self, name: str) -> str:
        return str(self.folder / name)

    def texts(self) -> list[str]:
        """The documents that a server is given."""
        return [(self.folder / f"text{n}").read_text() for n in range(_TEXTS)]

    def write(self) -> None:
        """Create all inputs."""
        import torch
        from conftest import make_book, make_tokenizer, save
        from tiny_causal_models import tiny_decoder
        from tiny_models import make

        torch.set_num_threads(1)
        tokenizer = make_tokenizer()
        save(self.folder / "t5", make("t5"), tokenizer)
        save(self.folder / "llama", tiny_decoder("llama"), tokenizer)
        (self.folder / "book").write_text(make_book(int(12_000 * self.size)))
        (self.folder / "story").write_text(". ".join(make_book(int(1_500 * self.size)).split(" w7")))
        words, documents, items = make_book(3_000).split(), int(16 * self.size), int(12 * self.size)
        documents = [{"id": f"book {n}", "document": " ".join(words[n : 60 + n * 71])} for n in range(documents)]
        items = [{"document": make_book(300 + n), "question": f"w{n}", "answer": f"w{n}"} for n in range(items)]
        examples = [{"document": " ".join(words[n * 90 : n * 90 + 90]), "answer": words[n]} for n in range(8)]
        for name, rows in (("documents", documents), ("items", items), ("examples", examples)):
            (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for n in range(_TEXTS):
            (self.folder / f"text{n}").write_text(make_book(int(800 * self.size) * (n + 1))[n:])


Outcome = dict[str, str]
"""What must be the same as in an undisturbed run, by name; bytes as their checksum."""


@dataclass(frozen=True)
class Command:
    """One command: `arguments` for a working folder, and the `outcome` there after it has printed `out`."""

    arguments: Callable[[Inputs, Path], list[str]]
    outcome: Callable[[Path, str], Outcome]


def memory_outcome(folder: Path) -> Outcome:
    """The files of a finished memory; the lock is no part of it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): checksum(path.read_bytes()) for path in files}


def checksum(content: bytes) -> str:
    """The SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def _rows(path: Path, without: tuple[str, ...]) -> Outcome:
    """The rows of a JSON Lines file by their contents; a row that is there twice is named twice."""
    outcome: Outcome = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        name = str(row.get("id", row.get("key", row.get("index", line))))
        content = json.dumps({key: value for key, value in row.items() if key not in without}, sort_keys=True)
        outcome[f"{name} again" if name in outcome else name] = content
    return outcome


def _index(inputs: Inputs, work: Path) -> list[str]:
    return ["index", inputs.book, "-o", str(work / "memory"), "--model", inputs.t5, "--window", "32"]


def _run(inputs: Inputs, work: Path) -> list[str]:
    options = ["--task", "ask", "--question", "w3 w4", "--model", inputs.t5, "--top-k", "9", "--max-new-tokens", "6"]
    options += ["--workers", "2", "--threads", "1", "--documents-per-call", "1"]
    return ["run", str(inputs.folder / "documents.jsonl"), "-o", str(work / "rows.jsonl"), *options]


def _run_index(inputs: Inputs, work: Path) -> list[str]:
    options = ["--task", "index", "--model", inputs.t5, "--workers", "2", "--threads", "1"]
    return ["run", str(inputs.folder / "documents.jsonl"), "-o", str(work / "indexed.jsonl"), *options]


def _run_index_outcome(work: Path, out: str) -> Outcome:
    return {**_rows(work / "indexed.jsonl", ("seconds",)), **memory_outcome(work / "indexed.memories")}


def _train(inputs: Inputs, work: Path) -> list[str]:
    options = ["--model", inputs.t5, "--data", str(inputs.folder / "examples.jsonl"), "--window", "32", "--top-k", "8"]
    options += ["--steps", "8", "--train-batch-size", "2", "--accumulation", "1", "--validate-every", "2"]
    return ["train", "-o", str(work / "trained"), "--method", "alternating", "--seed", "1", *options]


def _train_outcome(work: Path, out: str) -> Outcome:
    return {"weights": checksum((work / "trained" / "model.safetensors").read_bytes())}


def _evaluate(inputs: Inputs, work: Path) -> list[str]:
    options = ["--model", inputs.t5, "--data", str(inputs.folder / "items.jsonl"), "--top-k", "9"]
    return ["evaluate", *options, "-o", str(work / "evaluated"), "--max-new-tokens", "8", "--json"]


def _evaluate_outcome(work: Path, out: str) -> Outcome:
    result = json.loads(out)
    scores = {name: json.dumps(result[name], sort_keys=True) for name in ("metrics", "scores")}
    return {**scores, **_rows(work / "evaluated" / "predictions.jsonl", ("seconds",))}


def _summarize(inputs: Inputs, work: Path) -> list[str]:
    options = ["--model", inputs.llama, "--words", "60", "--method", "hierarchical", "--json"]
    return ["summarize", inputs.story, *options]


COMMANDS = {
    "index": Command(_index, lambda work, out: memory_outcome(work / "memory")),
    "run": Command(_run, lambda work, out: _rows(work / "rows.jsonl", ("seconds",))),
    "run index": Command(_run_index, _run_index_outcome),
    "train": Command(_train, _train_outcome),
    "evaluate": Command(_evaluate, _evaluate_outcome),
    "summarize": Command(_summarize, lambda work, out: {"summary": out}),
}


def serve(inputs: Inputs, work: Path) -> list[str]:
    """Arguments of the server."""
    options = ["--model", inputs.t5, "--port", "0", "--window", "32", "--num-beams", "1"]
    return ["serve", "--folder", str(work / "library"), *options]
