"""Disk and peak memory of `unlimiformer index` against the length of the text: `python bench/index_growth.py`.

States have BART-base's width; the encoder has one thin layer with random weights, so that a million tokens take minutes
and not half an hour. What is stored, and what is held in RAM for a token, does not depend on its depth.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

RESULTS = Path(__file__).parent / "results" / "index_growth.json"
WORDS = 5000


def make_model(folder: Path) -> None:
    """A model of BART-base's width with a tokenizer of numbered words."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*specials, *map(str, range(WORDS))])}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=core, **names).save_pretrained(folder)
    thin = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    config = BartConfig(vocab_size=WORDS + len(specials), d_model=768, **thin)
    BartForConditionalGeneration(config).save_pretrained(folder)


def main() -> None:
    """Indexes a hundred thousand tokens, and a million."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        make_model(Path(scratch) / "model")
        for tokens in (100_000, 1_000_000):
            text, chance = Path(scratch) / f"{tokens}.txt", random.Random(0)
            text.write_text(
                "\n".join(" ".join(str(chance.randrange(WORDS)) for _ in range(20)) for _ in range(tokens // 20))
            )
            command = [sys.executable, "-m", "unlimiformer", "index", text, "-o", Path(scratch) / f"{tokens}.memory"]
            done = subprocess.run(
                [*command, "--model", Path(scratch) / "model", "--json"], capture_output=True, check=True
            )
            told = json.loads(done.stdout)
            rows.append({name: told[name] for name in ("tokens", "windows", "seconds", "disk_bytes", "peak_bytes")})
            print(rows[-1])
    growth = rows[1]["peak_bytes"] / rows[0]["peak_bytes"]
    RESULTS.write_text(json.dumps({"peak_growth": growth, "rows": rows}, indent=1) + "\n")
    print(f"peak memory grows {growth:.3f} × while the text grows {rows[1]['tokens'] / rows[0]['tokens']:.1f} ×")


if __name__ == "__main__":
    main()
