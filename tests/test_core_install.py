"""An installation without extras: models are wrapped and queried, and what needs an extra says which one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from extras import optional_packages

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What `core_install.py` printed, in a process in which no optional package is installed."""
    folder = tmp_path_factory.mktemp("core")
    paths = filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "UNLIMIFORMER_CACHE": str(folder / "cache")}
    code = (
        "import sys, pathlib, extras; extras.uninstall_in_this_process()\n"
        "import core_install; core_install.main(pathlib.Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_optional_was_imported(results):
    assert results["imported"] == []


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder-only"])
def test_index_generate_and_answer(results, kind):
    result = results[kind]
    assert result["windows"] > 1 and result["new_tokens"] == [5, 5] and result["equal"]
    assert result["passages"] > 0 and result["answer"]


def test_families(results):
    assert len(json.loads(results["families"])) == 38


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("peft adapter", "peft", "lora"),
        ("faiss store", "faiss", "faiss"),
        ("plot", "matplotlib", "bench"),
        ("server", "fastapi", "serve"),
        ("ray", "ray", "ray"),
        ("rouge", "rouge_score", "evaluate"),
        ("entities", "spacy", "evaluate"),
        ("bertscore", "bert_score", "evaluate"),
        ("harness", "lm_eval", "harness"),
        ("mcp", "mcp", "mcp"),
        ("needle with speed", "psutil", "bench"),
        ("needle with a plot", "matplotlib", "bench"),
        ("adapter training", "peft", "lora"),
        ("training by rouge", "rouge_score", "evaluate"),
        ("hub data set", "datasets", "train"),
        ("model of a package", "onnx", "models"),
        ("translation model", "sentencepiece", "models"),
        ("quantized model", "torchao", "quantized"),
        ("sentencepiece tokenizer", "sentencepiece", "models"),
        ("memory of faiss", "faiss", "faiss"),
    ],
)
def test_the_missing_extra_is_named(results, name, package, extra):
    kind, message = results["errors"][name]
    assert kind == "MissingPackageError", message
    assert f"needs the package {package!r}" in message and f"pip install 'unlimiformer-hf[{extra}]'" in message
    packages = {part.replace("-", "_").removesuffix("_cpu") for part in optional_packages()[extra]}
    assert package in packages, "the extra really has the package"
