"""Key–value recall over 1 to 64 windows, for every training method of a small model that is trained from scratch.

Run `python bench/key_value_recall.py [steps] [seeds]`. After an interruption the same command continues. Means go to
bench/results/key_value_recall.json, every answer to key_value_recall.csv.

A document is a list of pairs, a key and a value; the question is a key. As in the paper, every method starts from one
model that has learned the task within its window, and is then trained on longer documents.

Two things make the task learnable in minutes: two heads of the encoder start with attention to the neighbouring tokens,
and half of the training documents use few keys. Without either, the model only guesses among the values of a document.
"""

import csv
import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch
from partial_run import FOLDER, RESULTS, PartialRun
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from unlimiformer import Unlimiformer
from unlimiformer.training import STRATEGIES, TrainingSettings, train
from unlimiformer.utils.files import atomic_write

NAME = "key_value_recall"
WINDOW = 32  # tokens
TRAINED_WINDOWS, TESTED_WINDOWS = 4, (1, 4, 16, 64)
KEYS, FREQUENT_KEYS, VALUES = 1100, 100, 48
DOCUMENTS, QUESTIONS = 16, 8  # documents in a training step, questions about each; 8 documents are too few to learn
TESTED_QUESTIONS = 100  # for each number of windows
METHODS = {  # the label in the table, and how the model is trained
    "standard": "standard",
    "standard, +test": "standard",
    **{name: name for name in ("chunked", "random", "retrieval", "alternating", "sled", "memorizing")},
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per word and no end of text, so that the model need not learn when to stop."""
    words = ["<pad>", "</s>", *(f"k{i}" for i in range(KEYS)), *(f"v{i}" for i in range(VALUES))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>")


def make_model() -> T5ForConditionalGeneration:
    """Make a T5 of two layers; two encoder heads start with attention to the previous and to the next token."""
    config = T5Config(
        vocab_size=2 + KEYS + VALUES,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        n_positions=WINDOW,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    distance_bias = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.data.zero_()
    distance_bias[1, 0] = distance_bias[17, 1] = 6.0
    return model


def make_document(rng: random.Random, pairs: int, keys: int, questions: int) -> dict:
    """Make a document in which every key occurs once, and questions about some of its pairs."""
    facts = [(f"k{key}", f"v{rng.randrange(VALUES)}") for key in rng.sample(range(keys), pairs)]
    tested = [rng.choice(facts) for _ in range(questions)]
    return {
        "document": " ".join(f"{key} {value}" for key, value in facts),
        "questions": [{"question": key, "answer": value} for key, value in tested],
    }


def pairs_in(windows: int) -> int:
    """Return the number of pairs that fill that many windows."""
    return (windows * WINDOW - 4) // 2


def main(steps: int = 600, seeds: int = 1) -> None:
    """Train the common start, then every method for half as many steps; test each, and write the results."""
    run = PartialRun(NAME, steps=steps, seeds=seeds, methods=METHODS)
    experiments = [(seed, name) for seed in range(seeds) for name in METHODS]
    for seed, name in experiments[len(run.rows) :]:
        print(f"seed {seed}: {name}", flush=True)
        run.add(_experiment(name, steps, seed))
    rows = [row for experiment in run.rows for row in experiment["rows"]]
    with (RESULTS / f"{NAME}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("method", "windows", "seed", "question", "expected", "answer"))
        writer.writerows(answer for experiment in run.rows for answer in experiment["answers"])
    settings = {"window": WINDOW, "trained_on_windows": [1, TRAINED_WINDOWS], "steps": steps, "methods": list(METHODS)}
    run.finish({**settings, "rows": rows})
    shutil.rmtree(FOLDER / NAME, ignore_errors=True)


def _experiment(name: str, steps: int, seed: int) -> dict:
    """Train by one method, or take the model if it is trained already, and test it over every number of windows."""
    folder = FOLDER / NAME / f"{steps}-{seed}"
    trained = folder / METHODS[name]
    data = _write_data(folder, TRAINED_WINDOWS, steps // 2, seed)
    settings = _settings(_train_start(folder, steps, seed), data, steps // 2, seed)
    train(replace(settings, method=METHODS[name]), trained, log=_log)
    rows, answers = [], []
    for windows in TESTED_WINDOWS:
        tested = _answer(trained, windows, truncated=name == "standard")
        accuracy = sum(expected == answer for _, expected, answer in tested) / len(tested)
        rows.append({"method": name, "windows": windows, "accuracy": accuracy, "seed": seed, "of": len(tested)})
        print(json.dumps(rows[-1]), flush=True)
        answers += [(name, windows, seed, *row) for row in tested]
    return {"rows": rows, "answers": answers}


def _train_start(folder: Path, steps: int, seed: int) -> Path:
    """Train a new model on documents of one window; return its folder."""
    untrained, start = folder / "untrained", folder / "start"
    if not (untrained / "tokenizer_config.json").exists():  # it is written last
        torch.manual_seed(seed)
        make_model().save_pretrained(untrained)
        make_tokenizer().save_pretrained(untrained)
    train(_settings(untrained, _write_data(folder, 1, steps, seed), steps, seed), start, log=_log)
    return start


def _log(line: str) -> None:
    print(line, flush=True)


def _write_data(folder: Path, windows: int, steps: int, seed: int) -> Path:
    """Write training documents, half of them of that many windows and half of at most one; return the file."""
    path, rng = folder / f"{windows}.jsonl", random.Random(seed)
    if not path.exists():
        lines = []
        for index in range(steps * DOCUMENTS):
            short = windows == 1 or index % 2 == 0
            pairs = rng.randint(2, pairs_in(1)) if short else pairs_in(windows)
            lines.append(make_document(rng, pairs, rng.choice((FREQUENT_KEYS, KEYS)), QUESTIONS))
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, "".join(json.dumps(line) + "\n" for line in lines))
    return path


def _settings(start: Path, data: Path, steps: int, seed: int) -> TrainingSettings:
    return TrainingSettings(
        model=str(start),
        data=str(data),
        question="decoder",
        form="{question}",
        window=WINDOW,
        top_k=WINDOW // 2,
        steps=steps,
        batch_size=DOCUMENTS * QUESTIONS,
        accumulation=1,
        learning_rate=3e-3,
        schedule="constant_with_warmup",
        warmup=100,
        seed=seed,
    )


@torch.no_grad()
def _answer(folder: Path, windows: int, truncated: bool) -> list[tuple[str, str, str]]:
    """Ask a trained model about documents of that many windows; return question, expected value and answer."""
    answers, rng = [], random.Random(99 + windows)
    with Unlimiformer.from_pretrained(folder) as u:
        for _ in range(TESTED_QUESTIONS // QUESTIONS):
            document = make_document(rng, pairs_in(windows), KEYS, QUESTIONS)
            ids = u.tokenizer(document["document"], verbose=False)["input_ids"]
            memory = u.index(torch.tensor(ids[:WINDOW] if truncated else ids))
            for item in document["questions"]:
                output = u.generate(memory, prompt=item["question"], max_new_tokens=1, do_sample=False)
                answers.append((item["question"], item["answer"], output.text.split()[-1]))
    return answers


if __name__ == "__main__":
    assert set(STRATEGIES) >= set(METHODS.values())
    main(*map(int, sys.argv[1:]))
