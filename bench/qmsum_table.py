"""A table like the paper's tables 2 and 3, on real data that fits small hardware.

`python bench/qmsum_table.py TRAIN.jsonl VALIDATION.jsonl [examples] [validated] [seeds]`: flan-t5-small is trained by
every method with so many examples of the training split, cut to 1,536 tokens, and answers so many questions of the
validation split over the first 6,144 tokens of each meeting. Means go to bench/results/qmsum_table.json, every answer
to qmsum_table.csv beside it. A run that was stopped goes on: what a row has answered is not asked again.
"""

import csv
import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers import AutoTokenizer

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq.attention import EVERYTHING
from unlimiformer.evaluation.metrics.rouge import rouge
from unlimiformer.hub import get_model
from unlimiformer.qa import QuestionFormat
from unlimiformer.text.tokenization import truncate_text
from unlimiformer.training import Example, TrainingSettings, examples, train

MODEL, LIMIT, TESTED, TARGET, NEW = "flan-t5-small", 1536, 6144, 128, 96
FORM = "question: {question} context: "
STANDARD = {"method": "standard"}
ROWS = {  # what is trained, and whether it is tested with all of each document, or as SLED
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


def main(data: str, validation: str, count: int = 48, validated: int = 24, seeds: int = 1) -> None:
    """Trains what is not trained yet, answers what is not answered yet, and keeps the means."""
    get_model(MODEL)
    told = _told()
    asked = [_shortened(example) for example in examples(validation, limit=validated)]
    for seed in range(seeds):
        for name, (changes, test) in ROWS.items():
            done = {number for row, s, number, _ in told if (row, s) == (name, seed)}
            if len(done) < len(asked):
                settings = _settings(data, validation, count, seed, changes)
                folder = Path("build/qmsum") / f"{'-'.join(map(str, changes.values()))}-{count}-{seed}"
                train(settings, folder, log=lambda line: print(line, flush=True))
                for number, answer in _answers(folder, settings, test, asked, done):
                    told.append((name, seed, number, answer))
                    _keep(told, count, asked)
            print(name, seed, _scores(told, name, seed, asked), flush=True)


def _settings(data: str, validation: str, count: int, seed: int, changes: dict) -> TrainingSettings:
    return TrainingSettings(
        model=MODEL,
        data=data,
        **({"validation": validation, "validation_examples": 4} if "early_stop_unlimited" in changes else {}),
        examples=count,
        form=FORM,
        source_limit=LIMIT,
        target_limit=TARGET,
        new_tokens=NEW,
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


def _shortened(example: Example) -> Example:
    """Of a meeting, so much as every row of the table is tested with."""
    return replace(example, document=truncate_text(example.document, _tokenizer(), TESTED))


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(get_model(MODEL))


@torch.no_grad()
def _answers(folder: Path, settings: TrainingSettings, test: str, asked: list, done: set):
    asking = QuestionFormat(settings.question, settings.form)
    with Unlimiformer.from_pretrained(folder, top_k=EVERYTHING if test == "sled" else None) as u:
        for number, example in enumerate(asked):
            if number in done:
                continue
            text, prefix = example.document, asking.text(example.question)
            if test == "truncated":
                ids = u.tokenizer(prefix + text, truncation=True, max_length=u.window, return_tensors="pt")
                made = u.model.generate(input_ids=ids["input_ids"], max_new_tokens=NEW, do_sample=False)
                yield number, u.tokenizer.decode(made[0], skip_special_tokens=True)
            else:
                yield number, u.generate(text, prefix=prefix, max_new_tokens=NEW, do_sample=False).text


def _scores(told: list[tuple], name: str, seed: int, asked: list) -> dict[str, float]:
    mine = [(answer, asked[number].answer) for row, s, number, answer in told if (row, s) == (name, seed)]
    return rouge(*zip(*mine, strict=True))


def _told() -> list[tuple]:
    if not ANSWERS.exists():
        return []
    with ANSWERS.open(newline="") as file:
        return [(row, int(seed), int(number), answer) for row, seed, number, answer in list(csv.reader(file))[1:]]


def _keep(told: list[tuple], count: int, asked: list) -> None:
    with ANSWERS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("method", "seed", "question", "answer"))
        writer.writerows(told)
    rows = []
    for name in dict.fromkeys(row[0] for row in told):
        seeds = sorted({row[1] for row in told if row[0] == name})
        scores = [_scores(told, name, seed, asked) for seed in seeds]
        rows.append({"method": name, "seeds": len(seeds), **{k: mean(s[k] for s in scores) for k in scores[0]}})
    about = {
        "model": MODEL,
        "training_examples": count,
        "training_limit": LIMIT,
        "tested_limit": TESTED,
        "validated": len(asked),
    }
    TABLE.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
