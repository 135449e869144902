"""Key–value recall: a small model trained from scratch by every method, asked over 1 to 64 windows.

`python bench/key_value_recall.py [steps] [seeds]`. A document is a list of pairs, a key and a value; the question is a
key. Results go to bench/results/key_value_recall.json, raw answers to key_value_recall.csv beside it.
"""

import csv
import json
import random
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from unlimiformer import Unlimiformer
from unlimiformer.training import STRATEGIES, TrainingSettings, train

WINDOW, TRAINED, WINDOWS = 64, 4, (1, 4, 16, 64)
KEYS, VALUES = 2100, 48
METHODS = {
    "standard": {"method": "standard"},
    "standard, +test": {"method": "standard"},
    **{name: {"method": name} for name in ("chunked", "random", "retrieval", "alternating", "sled", "memorizing")},
}
RESULTS = Path(__file__).with_name("results")


def tokenizer() -> PreTrainedTokenizerFast:
    """A word is a token."""
    words = ["<pad>", "</s>", *(f"k{i}" for i in range(KEYS)), *(f"v{i}" for i in range(VALUES))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>")


def model() -> T5ForConditionalGeneration:
    """Two layers on either side."""
    config = T5Config(
        vocab_size=2 + KEYS + VALUES,
        d_model=96,
        d_kv=24,
        d_ff=192,
        num_layers=2,
        num_heads=4,
        n_positions=WINDOW,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config)


def examples(rng: random.Random, count: int, windows: int, fewest: int | None = None) -> list[dict[str, str]]:
    """Documents that fill so many windows, or have as few pairs as `fewest`; every key is there once."""
    pairs = (windows * WINDOW - 4) // 2
    made = []
    for _ in range(count):
        chosen = rng.sample(range(KEYS), pairs if fewest is None else rng.randint(fewest, pairs))
        told = [(f"k{key}", f"v{rng.randrange(VALUES)}") for key in chosen]
        question, answer = rng.choice(told)
        made.append(
            {"document": " ".join(f"{key} {value}" for key, value in told), "question": question, "answer": answer}
        )
    return made


def main(steps: int = 3000, seeds: int = 1) -> None:
    """Trains and tests every method, and keeps what came out after each."""
    rows, answers = [], []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            trained: dict[str, Path] = {}
            for name, changes in METHODS.items():
                settings = _settings(Path(folder), steps, seed, changes)
                if settings.method not in trained:
                    trained[settings.method] = Path(folder) / settings.method
                    train(settings, trained[settings.method])
                for windows in WINDOWS:
                    told = _answers(trained[settings.method], windows, all_of_it=name != "standard")
                    right = sum(expected == got for _, expected, got in told) / len(told)
                    rows.append({"method": name, "windows": windows, "accuracy": right, "seed": seed, "of": len(told)})
                    answers += [(name, windows, seed, *each) for each in told]
                    print(json.dumps(rows[-1]), flush=True)
                _keep(rows, answers, steps)


def _settings(folder: Path, steps: int, seed: int, changes: dict[str, str]) -> TrainingSettings:
    start, data = folder / "start", folder / "train.jsonl"
    if not start.exists():
        torch.manual_seed(seed)
        model().save_pretrained(start)
        tokenizer().save_pretrained(start)
        rng = random.Random(seed)
        lines = examples(rng, steps * 8, 1, fewest=2) + examples(rng, steps * 8, TRAINED)
        rng.shuffle(lines)
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TrainingSettings(
        model=str(start),
        data=str(data),
        question="decoder",
        form="{question}",
        window=WINDOW,
        top_k=WINDOW // 2,
        steps=steps,
        batch_size=16,
        accumulation=1,
        learning_rate=2e-3,
        warmup=100,
        seed=seed,
        **changes,
    )


@torch.no_grad()
def _answers(folder: Path, windows: int, all_of_it: bool) -> list[tuple[str, str, str]]:
    """Question, value and answer of a hundred documents."""
    told = []
    with Unlimiformer.from_pretrained(folder) as u:
        for line in examples(random.Random(99 + windows), 100, windows):
            ids = u.tokenizer(line["document"], verbose=False)["input_ids"]
            ids = ids if all_of_it else ids[:WINDOW]
            out = u.generate(torch.tensor(ids), prompt=line["question"], max_new_tokens=1, do_sample=False)
            told.append((line["question"], line["answer"], out.text.split()[-1]))
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
