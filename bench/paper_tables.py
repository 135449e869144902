"""The paper's tables 3 and 4 in small: every training method and baseline on real data, with flan-t5-small.

Run `python bench/paper_tables.py NAME TRAIN.jsonl VALIDATION.jsonl`, for example with NAME qmsum or squality.
flan-t5-small is fine-tuned inside its window for some steps: the common start. From there every method trains the
decoder with a frozen encoder, so that all of them share the memories of the documents, each with several seeds. The
questions are in the decoder, and a tenth of the training documents chooses the best checkpoint. All questions of the
validation file (or `--questions` of them, evenly spread) are answered over whole documents.

Models and memories go to build/paper_tables/NAME, every answer to bench/results/paper_NAME.csv, means and bootstrap
intervals to paper_NAME.json. After an interruption the same command continues.
"""

import argparse
import csv
import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unlimiformer import Unlimiformer
from unlimiformer.engines.answer_end import AnswerEnd
from unlimiformer.engines.seq2seq.attention import RetrievalPolicy
from unlimiformer.evaluation.bootstrap import differences, intervals
from unlimiformer.evaluation.metrics import Rouge
from unlimiformer.hub import get_model
from unlimiformer.memory import Memory
from unlimiformer.qa import QuestionFormat
from unlimiformer.tasks import Example
from unlimiformer.tasks.definition import sample_evenly
from unlimiformer.tasks.example import merge_answers, read_examples
from unlimiformer.training import TrainingSettings, train

MODEL = "flan-t5-small"
FORM = "question: {question} answer:"
RESULTS = Path(__file__).with_name("results")
TRAININGS: dict[str, dict[str, Any]] = {
    "standard": {"method": "standard"},
    "early stop": {"method": "standard", "early_stop_unlimited": True},
    "chunked": {"method": "chunked"},
    "random": {"method": "random"},
    "retrieval": {"method": "retrieval"},
    "alternating": {"method": "alternating"},
    "SLED": {"method": "sled"},
    "memorizing": {"method": "memorizing"},
}
ROWS = {  # row of a table: how the model is trained, and how it is tested
    "truncated": ("standard", "truncated"),
    "truncated, +test SLED": ("standard", "all tokens"),
    "truncated, +test": ("standard", "unlimited"),
    "early stop": ("early stop", "unlimited"),
    "chunked": ("chunked", "truncated"),
    "chunked, +test": ("chunked", "unlimited"),
    "random": ("random", "unlimited"),
    "retrieval": ("retrieval", "unlimited"),
    "alternating": ("alternating", "unlimited"),
    "SLED": ("SLED", "all tokens"),
    "memorizing": ("memorizing", "unlimited"),
}


@dataclass(frozen=True)
class Answer:
    """One line of the CSV file; `question` counts the tested questions."""

    row: str
    seed: int
    question: int
    answer: str


class PaperTables:
    """One data set: its folder, its questions, and the answers so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._folder = Path("build/paper_tables") / options.name
        self._csv, self._json = (RESULTS / f"paper_{options.name}.{kind}" for kind in ("csv", "json"))
        examples = sample_evenly(list(read_examples(Path(options.validation))), options.questions)
        merged = merge_answers(examples)
        self._tested: list[Example] = [example for example, _ in merged]
        self._references = [references for _, references in merged]
        self._answers = self._read_answers()
        self._scores: dict[tuple[str, int], dict[str, list[float]]] = {}  # of finished rows and seeds

    def run(self) -> None:
        """Train what is missing, answer what is missing, and write the table."""
        get_model(MODEL)
        training, choosing = self._split_training_data()
        start = self._folder / "start"
        train(self._start_settings(training), start, log=_log)
        for seed in range(self._options.seeds):
            for name, (trained, test) in ROWS.items():
                missing = self._missing(name, seed)
                if missing:
                    folder = self._folder / f"{trained.replace(' ', '-')}-{seed}"
                    train(self._settings(start, training, choosing, seed, TRAININGS[trained]), folder, log=_log)
                    for checkpoint in folder.glob("checkpoint-*"):  # of a finished training; they are large
                        shutil.rmtree(checkpoint)
                    for question, text in self._answer(folder, test, missing):
                        self._append(Answer(name, seed, question, text))
                _log(f"{name}, seed {seed}: {self._means(name, seed)}")
                self._write_table()

    def _split_training_data(self) -> tuple[str, str]:
        """Files with nine tenths of the training documents, and with the tenth that chooses checkpoints."""
        lines = Path(self._options.training).read_text(encoding="utf-8").splitlines()
        self._folder.mkdir(parents=True, exist_ok=True)
        paths = [self._folder / name for name in ("train.jsonl", "choose.jsonl")]
        for path, chosen in zip(paths, (False, True), strict=True):
            path.write_text("".join(f"{line}\n" for i, line in enumerate(lines) if (i % 10 == 9) == chosen))
        return str(paths[0]), str(paths[1])

    def _shared_settings(self) -> dict[str, Any]:
        return {
            "question": "decoder",
            "form": FORM,
            "overlap": 0.25,
            "source_limit": self._options.source_limit,
            "target_limit": 128,
            "batch_size": 4,
            "accumulation": 1,
            "warmup": 0.1,
            "weight_decay": 0.001,
            "dropout": 0.0,
            "bfloat16": self._options.bfloat16,
            "trainer": {"adam_beta2": 0.98, "adam_epsilon": 1e-6},
        }

    def _start_settings(self, data: str) -> TrainingSettings:
        changes = {"steps": self._options.start_steps, "validate_every": 100, "learning_rate": 3e-4}
        return TrainingSettings(MODEL, data, method="standard", **self._shared_settings(), **changes)

    def _settings(self, start: Path, data: str, choosing: str, seed: int, changes: dict[str, Any]) -> TrainingSettings:
        return TrainingSettings(
            str(start),
            data,
            choosing,
            freeze_encoder=True,
            memories=str(self._folder / "memories"),
            validation_examples=24,
            metric="rouge",
            new_tokens=self._options.new_tokens,
            steps=self._options.steps,
            validate_every=max(1, self._options.steps // 4),
            learning_rate=2e-4,
            seed=42 + seed,
            **self._shared_settings(),
            **changes,
        )

    @torch.no_grad()
    def _answer(self, folder: Path, test: str, missing: list[int]) -> Iterator[tuple[int, str]]:
        """Answers of a trained model over whole documents, whose memories all models share."""
        generation = {"max_new_tokens": self._options.new_tokens, "do_sample": False, "num_beams": 1}
        question_format, documents = QuestionFormat("decoder", FORM), self._document_numbers()
        with Unlimiformer.from_pretrained(folder) as u:
            for question in missing:
                example = self._tested[question]
                place = self._folder / "tested" / f"{documents[question]}"
                memory = Memory.load(place) if place.exists() else u.index(example.document, folder=place)
                prompt = question_format.text(example.question)
                end = AnswerEnd([example.question], generation, u.tokenizer)
                with _tested_with(u, test):
                    yield question, end.text(u.generate(memory, prompt=prompt, **end.generation).answer)

    def _document_numbers(self) -> list[int]:
        numbers = {text: n for n, text in enumerate(dict.fromkeys(example.document for example in self._tested))}
        return [numbers[example.document] for example in self._tested]

    def _missing(self, row: str, seed: int) -> list[int]:
        done = {answer.question for answer in self._answers if (answer.row, answer.seed) == (row, seed)}
        return [question for question in range(len(self._tested)) if question not in done]

    def _read_answers(self) -> list[Answer]:
        if not self._csv.exists():
            return []
        with self._csv.open(newline="") as file:
            return [Answer(r["row"], int(r["seed"]), int(r["question"]), r["answer"]) for r in csv.DictReader(file)]

    def _append(self, answer: Answer) -> None:
        is_new = not self._csv.exists()
        with self._csv.open("a", newline="") as file:
            writer = csv.DictWriter(file, asdict(answer), lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(asdict(answer))
        self._answers.append(answer)

    def _columns(self, row: str, seed: int | None = None) -> dict[str, np.ndarray]:
        """ROUGE of every question, the mean of its seeds."""
        seeds = range(self._options.seeds) if seed is None else [seed]
        by_seed = [self._score(row, number) for number in seeds if not self._missing(row, number)]
        return {kind: np.mean([scores[kind] for scores in by_seed], axis=0) for kind in by_seed[0]} if by_seed else {}

    def _score(self, row: str, seed: int) -> dict[str, list[float]]:
        """ROUGE of every question of a finished row, computed once."""
        if (row, seed) not in self._scores:
            texts = {a.question: a.answer for a in self._answers if (a.row, a.seed) == (row, seed)}
            answers = [texts[question] for question in range(len(self._tested))]
            self._scores[row, seed] = Rouge().scores(answers, self._references)
        return self._scores[row, seed]

    def _means(self, row: str, seed: int) -> str:
        return ", ".join(f"{kind} {scores.mean():.2f}" for kind, scores in self._columns(row, seed).items())

    def _write_table(self) -> None:
        """Means of all seeds, and differences from the truncated model with their p-values, by document."""
        documents, base = self._document_numbers(), self._columns("truncated")
        rows = []
        for row in ROWS:
            columns = self._columns(row)
            if not columns:
                continue
            seeds = len({answer.seed for answer in self._answers if answer.row == row})
            changes = differences(columns, base, documents)
            rows.append(
                {
                    "row": row,
                    "seeds": seeds,
                    **{kind: asdict(mean) for kind, mean in intervals(columns, documents).items()},
                    "difference": {kind: asdict(change) for kind, change in changes.items()},
                }
            )
        settings = {
            name: value for name, value in vars(self._options).items() if name not in ("training", "validation")
        }
        report = {"model": MODEL, **settings, "questions": len(self._tested), "rows": rows}
        self._json.write_text(json.dumps(report, indent=1) + "\n")


def _tested_with(u: Unlimiformer, test: str) -> AbstractContextManager[None]:
    """What the layers attend to in a test; "unlimited" is what the model was trained for."""
    layers = len(u.engine.cross_attentions)
    if test == "truncated":
        return u.engine.context(policies=[RetrievalPolicy(u.top_k, retrieves=False)] * layers)
    return u.engine.full_attention() if test == "all tokens" else nullcontext()


def _log(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description="Tables 3 and 4 of the paper in small, on real data.")
    parser.add_argument("name", help="of the data set, in the names of files")
    parser.add_argument("training", help='JSONL; a line has "document" and "questions"')
    parser.add_argument("validation", help="JSONL, for the answers that are reported")
    parser.add_argument("--steps", type=int, default=1000, help="of every method")
    parser.add_argument("--start-steps", type=int, default=300, help="of the common start")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=None, help="of the validation file; default: all")
    parser.add_argument("--source-limit", type=int, default=3072, help="longest document in training, in tokens")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--bfloat16", action="store_true")
    PaperTables(parser.parse_args()).run()


if __name__ == "__main__":
    main()
