"""Setup of all tests: no access to a model hub, one thread per worker, and a summary of numerical differences."""

from __future__ import annotations

import os
import stat

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRITON_INTERPRET", "1")  # runs the Triton kernels on the CPU; read when Triton is imported

if "PYTEST_XDIST_WORKER" in os.environ:  # test workers and their subprocesses share the cores
    os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
import transformers

transformers.utils.logging.set_verbosity_error()


def pytest_terminal_summary(terminalreporter):
    rows = sorted(
        (name, value)
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name.startswith("oracle: ")
    )
    if rows:
        terminalreporter.section("largest differences from the reference, relative to the largest logit")
        for name, value in rows:
            terminalreporter.write_line(f"{name.removeprefix('oracle: '):<60} {value:.1e}")


def make_tokenizer():
    """Create a fast tokenizer of 97 words, <pad> <s> </s> and w0 … w93, whose inputs are <s> … </s>."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(94))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="w0"
    )


def make_book(words: int = 200):
    """Create a random text of `words` words."""
    generator = torch.Generator().manual_seed(5)
    return " ".join(f"w{int(i)}" for i in torch.randint(0, 94, (words,), generator=generator))


def save(path, model, tokenizer) -> str:
    """Save a model and its tokenizer to a folder and return its path."""
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def synced(monkeypatch):
    """What was synced to disk: "file" or "folder" for every call, in order; a test may add its own steps."""
    steps, fsync = [], os.fsync
    kind = {True: "folder", False: "file"}
    monkeypatch.setattr(
        os, "fsync", lambda file: steps.append(kind[stat.S_ISDIR(os.fstat(file).st_mode)]) or fsync(file)
    )
    return steps


@pytest.fixture
def book():
    return make_book()


@pytest.fixture
def scribe(tokenizer):
    """Make a scribe; by default it repeats the first sentence of a text."""
    from summary_helpers import Scribe

    return lambda write=lambda text, instruction: " ".join(text.split()).split(". ")[0] + ".": Scribe(tokenizer, write)
