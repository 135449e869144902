"""The catalogue's flan-t5-small-answers on real questions: truncated, with all of each meeting, and as SLED.

`python bench/default_model.py VALIDATION.jsonl [questions]`: QMSum's validation split, or any file of that shape. Means
go to bench/results/default_model.json, every answer to default_model.csv beside it. A run that was stopped goes on.
"""

import csv
import json
import sys
from contextlib import nullcontext
from pathlib import Path

from unlimiformer import Unlimiformer
from unlimiformer.asking import Asking, Conversation
from unlimiformer.catalogue import get_model
from unlimiformer.evaluation.rouge import rouge
from unlimiformer.training import examples

MODEL = "flan-t5-small-answers"
GENERATION = {"max_new_tokens": 96, "do_sample": False, "num_beams": 1, "no_repeat_ngram_size": 4}
RESULTS = Path(__file__).with_name("results")
TABLE, ANSWERS = RESULTS / "default_model.json", RESULTS / "default_model.csv"
FIELDS = ("method", "question", "answer", "reference")


def main(validation: str, questions: int = 60) -> None:
    """Asks what was not asked yet, meeting by meeting, and keeps the means."""
    folder = get_model(MODEL)
    asked = examples(validation, limit=questions)
    told = list(csv.DictReader(ANSWERS.open(newline=""))) if ANSWERS.exists() else []
    done = {(row["method"], row["question"], row["reference"]) for row in told}
    with Unlimiformer.from_pretrained(MODEL) as u:
        talk = None
        for example in asked:
            if talk is None or talk.source != example.document:
                talk = Conversation(u, example.document, Asking.of(folder))
            for method in ("truncated", "unlimited", "SLED"):
                if (method, example.question, example.answer) in done:
                    continue
                if method == "truncated":
                    answer = talk.truncated(example.question, **GENERATION)
                else:
                    with u.installation.seeing_everything() if method == "SLED" else nullcontext():
                        answer = talk.ask(example.question, **GENERATION).text
                told.append(dict(zip(FIELDS, (method, example.question, answer, example.answer), strict=True)))
            _keep(told, len(asked))


def _keep(told: list[dict], questions: int) -> None:
    with ANSWERS.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(told)
    rows = []
    for method in dict.fromkeys(row["method"] for row in told):
        mine = [row for row in told if row["method"] == method]
        scores = rouge([row["answer"] for row in mine], [row["reference"] for row in mine])
        rows.append({"method": method, "answered": len(mine), **scores})
    TABLE.write_text(json.dumps({"model": MODEL, "questions": questions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
