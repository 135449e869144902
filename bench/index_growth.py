"""Disk space and peak memory of `unlimiformer index` against the length of the text.

Run `python bench/index_growth.py`; it takes some minutes. After an interruption the same command continues. Results go
to bench/results/index_growth.json.

The model has BART-base's width, but one thin encoder layer with random weights, so that a million tokens are encoded
quickly. What is stored for a token, and held in memory, does not depend on the depth of the encoder.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from partial_run import PartialRun
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

LENGTHS = (100_000, 1_000_000)
KEYS = ("tokens", "windows", "seconds", "disk_bytes", "peak_bytes")
WORDS = 5000


def save_model(folder: Path) -> None:
    """Save a model of BART-base's width, and a tokenizer whose words are numbers."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*specials, *map(str, range(WORDS))])}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=core, **names).save_pretrained(folder)
    thin = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    config = BartConfig(vocab_size=WORDS + len(specials), d_model=768, **thin)
    BartForConditionalGeneration(config).save_pretrained(folder)


def measure(tokens: int, scratch: Path) -> dict:
    """Index a random text of that many tokens in a process of its own, whose progress is shown."""
    text, rng = scratch / f"{tokens}.txt", random.Random(0)
    text.write_text("\n".join(" ".join(str(rng.randrange(WORDS)) for _ in range(20)) for _ in range(tokens // 20)))
    command = [sys.executable, "-m", "unlimiformer", "index", text, "-o", scratch / f"{tokens}.memory"]
    command += ["--model", scratch / "model", "--json"]
    fields = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return {key: fields[key] for key in KEYS}


def main() -> None:
    """Index a hundred thousand tokens, then a million, and compare the peak memory."""
    run = PartialRun("index_growth", lengths=LENGTHS)
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch) / "model")
        for tokens in LENGTHS[len(run.rows) :]:
            run.add(measure(tokens, Path(scratch)))
            print(run.rows[-1], flush=True)
    rows = run.rows
    growth = rows[1]["peak_bytes"] / rows[0]["peak_bytes"]
    run.finish({"peak_growth": growth, "rows": rows})
    print(f"peak memory grows {growth:.3f} × while the text grows {rows[1]['tokens'] / rows[0]['tokens']:.1f} ×")


if __name__ == "__main__":
    main()
