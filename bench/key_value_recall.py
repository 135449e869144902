"""Key–value recall: a small model trained from scratch, then by every method, asked over 1 to 64 windows.

`python bench/key_value_recall.py [steps] [seeds]`. A document is a list of pairs, a key and a value; the question is a
key. Results go to bench/results/key_value_recall.json, raw answers to key_value_recall.csv beside it. As in the paper,
every method starts from one model that knows the task inside its window, and is trained on longer documents.

Two things make the task learnable in minutes: heads of the encoder begin by looking at the tokens beside their own, and
half of the training documents use few keys. Without either the model stays at chance among the values of a document.
"""

import csv
import json
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from unlimiformer import Unlimiformer
from unlimiformer.training import STRATEGIES, TrainingSettings, train

WINDOW, TRAINED, WINDOWS = 32, 4, (1, 4, 16, 64)
KEYS, FREQUENT, VALUES = 1100, 100, 48
DOCUMENTS, QUESTIONS = 16, 8  # of a training step; with 8 documents nothing is learned in this time
ASKED = 100  # questions for each number of windows
METHODS = {
    "standard": {"method": "standard"},
    "standard, +test": {"method": "standard"},
    **{name: {"method": name} for name in ("chunked", "random", "retrieval", "alternating", "sled", "memorizing")},
}
RESULTS = Path(__file__).with_name("results")


def tokenizer() -> PreTrainedTokenizerFast:
    """A word is a token, and nothing ends a text: to learn when to stop would cover what is to be learned."""
    words = ["<pad>", "</s>", *(f"k{i}" for i in range(KEYS)), *(f"v{i}" for i in range(VALUES))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>")


def model() -> T5ForConditionalGeneration:
    """Two layers on either side; two heads of the encoder begin with the tokens before and behind."""
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
    made = T5ForConditionalGeneration(config)
    distances = made.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.data.zero_()
    distances[1, 0] = distances[17, 1] = 6.0
    return made


def document(rng: random.Random, pairs: int, keys: int, questions: int) -> dict:
    """Every key is there once."""
    told = [(f"k{key}", f"v{rng.randrange(VALUES)}") for key in rng.sample(range(keys), pairs)]
    asked = [rng.choice(told) for _ in range(questions)]
    return {
        "document": " ".join(f"{key} {value}" for key, value in told),
        "questions": [{"question": key, "answer": value} for key, value in asked],
    }


def pairs_in(windows: int) -> int:
    """How many pairs fill so many windows."""
    return (windows * WINDOW - 4) // 2


def main(steps: int = 600, seeds: int = 1) -> None:
    """Trains a start, then every method for half as long; tests them, and keeps what came out after each."""
    rows, answers = [], []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            trained: dict[str, Path] = {}
            for name, changes in METHODS.items():
                method = changes["method"]
                if method not in trained:
                    trained[method] = Path(folder) / method
                    start = _knowing_the_task(Path(folder), steps, seed)
                    settings = _settings(start, _data(Path(folder), TRAINED, steps // 2, seed), steps // 2, seed)
                    train(replace(settings, method=method), trained[method])
                for windows in WINDOWS:
                    told = _answers(trained[method], windows, all_of_it=name != "standard")
                    right = sum(expected == got for _, expected, got in told) / len(told)
                    rows.append({"method": name, "windows": windows, "accuracy": right, "seed": seed, "of": len(told)})
                    answers += [(name, windows, seed, *each) for each in told]
                    print(json.dumps(rows[-1]), flush=True)
                _keep(rows, answers, steps)


def _knowing_the_task(folder: Path, steps: int, seed: int) -> Path:
    """A model that was trained with documents of one window."""
    blank, start = folder / "blank", folder / "start"
    if not start.exists():
        torch.manual_seed(seed)
        model().save_pretrained(blank)
        tokenizer().save_pretrained(blank)
        train(_settings(blank, _data(folder, 1, steps, seed), steps, seed), start)
    return start


def _data(folder: Path, windows: int, steps: int, seed: int) -> Path:
    """Documents of so many windows, and as many of one."""
    path, rng = folder / f"{windows}.jsonl", random.Random(seed)
    if not path.exists():
        lines = []
        for number in range(steps * DOCUMENTS):
            short = windows == 1 or number % 2 == 0
            pairs = rng.randint(2, pairs_in(1)) if short else pairs_in(windows)
            lines.append(document(rng, pairs, rng.choice((FREQUENT, KEYS)), QUESTIONS))
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
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
def _answers(folder: Path, windows: int, all_of_it: bool) -> list[tuple[str, str, str]]:
    """Question, value and answer."""
    told, rng = [], random.Random(99 + windows)
    with Unlimiformer.from_pretrained(folder) as u:
        for _ in range(ASKED // QUESTIONS):
            line = document(rng, pairs_in(windows), KEYS, QUESTIONS)
            ids = u.tokenizer(line["document"], verbose=False)["input_ids"]
            memory = u.index(torch.tensor(ids if all_of_it else ids[:WINDOW]))
            for each in line["questions"]:
                out = u.generate(memory, prompt=each["question"], max_new_tokens=1, do_sample=False)
                told.append((each["question"], each["answer"], out.text.split()[-1]))
    return told


def _keep(rows: list[dict], answers: list[tuple], steps: int) -> None:
    about = {"window": WINDOW, "trained_on_windows": [1, TRAINED], "steps": steps, "methods": list(METHODS)}
    (RESULTS / "key_value_recall.json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    with (RESULTS / "key_value_recall.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("method", "windows", "seed", "question", "expected", "answer"))
        writer.writerows(answers)


if __name__ == "__main__":
    assert set(STRATEGIES) >= {changes["method"] for changes in METHODS.values()}
    main(*map(int, sys.argv[1:]))
