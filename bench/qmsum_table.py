"""A table like tables 2 and 3 of the paper, on real data and with a model that fits small hardware.

Run `python bench/qmsum_table.py TRAIN.jsonl VALIDATION.jsonl [examples] [validated] [seeds]`. flan-t5-small is trained
by every method with `examples` of the training split, cut to 1,536 tokens, and answers `validated` questions of the
validation split over the first 6,144 tokens of each meeting. Means go to bench/results/qmsum_table.json, every answer
to qmsum_table.csv. After an interruption the same command continues: questions that have an answer in the CSV file are
not asked again. Remove that file and build/qmsum to start again.
"""

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq.attention import EVERYTHING
from unlimiformer.evaluation.metrics.rouge import rouge
from unlimiformer.hub import get_model
from unlimiformer.qa import QuestionFormat
from unlimiformer.text.tokenization import truncate_text
from unlimiformer.training import Example, TrainingSettings, examples, train

MODEL = "flan-t5-small"
TRAINED_TOKENS, TESTED_TOKENS, TARGET_TOKENS, NEW_TOKENS = 1536, 6144, 128, 96
QUESTION_FORM = "question: {question} context: "
STANDARD = {"method": "standard"}
METHODS = {  # label: how the model is trained, and how it is tested
    "truncated": (STANDARD, "truncated"),
    "truncated, +test SLED": (STANDARD, "sled"),
    "truncated, +test": (STANDARD, "unlimited"),
    "early stop": ({**STANDARD, "early_stop_unlimited": True}, "unlimited"),
    "chunked, +test": ({"method": "chunked"}, "unlimited"),
    "random": ({"method": "random"}, "unlimited"),
    "retrieval": ({"method": "retrieval"}, "unlimited"),
    "alternating": ({"method": "alternating"}, "unlimited"),
    "SLED": ({"method": "sled"}, "unlimited"),
    "memorizing": ({"method": "memorizing"}, "unlimited"),
}
RESULTS = Path(__file__).with_name("results")
TABLE, ANSWERS = RESULTS / "qmsum_table.json", RESULTS / "qmsum_table.csv"


class Answered(NamedTuple):
    """One answer; `question` is the index of its example."""

    method: str
    seed: int
    question: int
    answer: str


def main(data: str, validation: str, count: int = 48, validated: int = 24, seeds: int = 1) -> None:
    """Train the missing models, answer the missing questions, and write the means."""
    get_model(MODEL)
    answers = _read_answers()
    tested = [_truncate(example) for example in examples(validation, limit=validated)]
    for seed in range(seeds):
        for name, (changes, test) in METHODS.items():
            done = {row.question for row in answers if (row.method, row.seed) == (name, seed)}
            if len(done) < len(tested):
                settings = _settings(data, validation, count, seed, changes)
                folder = Path("build/qmsum") / f"{'-'.join(map(str, changes.values()))}-{count}-{seed}"
                train(settings, folder, log=lambda line: print(line, flush=True))
                missing = {index: example for index, example in enumerate(tested) if index not in done}
                for index, answer in _answer(folder, settings, test, missing):
                    answers.append(Answered(name, seed, index, answer))
                    _write(answers, count, tested)
                    print(f"{name}, seed {seed}: question {index + 1} of {len(tested)}", flush=True)
            print(name, seed, _scores(answers, name, seed, tested), flush=True)


def _settings(data: str, validation: str, count: int, seed: int, changes: dict) -> TrainingSettings:
    return TrainingSettings(
        model=MODEL,
        data=data,
        **({"validation": validation, "validation_examples": 4} if "early_stop_unlimited" in changes else {}),
        examples=count,
        form=QUESTION_FORM,
        source_limit=TRAINED_TOKENS,
        target_limit=TARGET_TOKENS,
        new_tokens=NEW_TOKENS,
        top_k=128,
        overlap=0.25,
        steps=count // 4,
        validate_every=max(1, count // 16),
        accumulation=4,
        learning_rate=5e-4,
        schedule="constant",
        seed=seed,
        **changes,
    )


def _truncate(example: Example) -> Example:
    """Cut a meeting to the length with which every method is tested."""
    return replace(example, document=truncate_text(example.document, _tokenizer(), TESTED_TOKENS))


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(get_model(MODEL))


@torch.no_grad()
def _answer(
    folder: Path, settings: TrainingSettings, test: str, missing: dict[int, Example]
) -> Iterator[tuple[int, str]]:
    """Yield the answers of a trained model, with the indices of their examples."""
    question_format = QuestionFormat(settings.question, settings.form)
    with Unlimiformer.from_pretrained(folder, top_k=EVERYTHING if test == "sled" else None) as u:
        for index, example in missing.items():
            text, prefix = example.document, question_format.text(example.question)
            if test == "truncated":
                ids = u.tokenizer(prefix + text, truncation=True, max_length=u.window, return_tensors="pt")
                output = u.model.generate(input_ids=ids["input_ids"], max_new_tokens=NEW_TOKENS, do_sample=False)
                yield index, u.tokenizer.decode(output[0], skip_special_tokens=True)
            else:
                yield index, u.generate(text, prefix=prefix, max_new_tokens=NEW_TOKENS, do_sample=False).text


def _scores(answers: list[Answered], name: str, seed: int, tested: list[Example]) -> dict[str, float]:
    """Return the ROUGE means of one method and seed."""
    rows = [row for row in answers if (row.method, row.seed) == (name, seed)]
    return rouge([row.answer for row in rows], [tested[row.question].answer for row in rows])


def _read_answers() -> list[Answered]:
    if not ANSWERS.exists():
        return []
    with ANSWERS.open(newline="") as file:
        lines = list(csv.reader(file))[1:]
    return [Answered(method, int(seed), int(question), answer) for method, seed, question, answer in lines]


def _write(answers: list[Answered], count: int, tested: list[Example]) -> None:
    """Write all answers and the means of all methods."""
    with ANSWERS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Answered._fields)
        writer.writerows(answers)
    rows = []
    for name in dict.fromkeys(row.method for row in answers):
        seeds = sorted({row.seed for row in answers if row.method == name})
        scores = [_scores(answers, name, seed, tested) for seed in seeds]
        rows.append({"method": name, "seeds": len(seeds), **{k: mean(s[k] for s in scores) for k in scores[0]}})
    settings = {
        "model": MODEL,
        "training_examples": count,
        "training_limit": TRAINED_TOKENS,
        "tested_limit": TESTED_TOKENS,
        "validated": len(tested),
    }
    TABLE.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
