"""`unlimiformer bench`: the commands write complete results, with tiny models in place of real ones.

`bench decode` and `bench search` are tested in tests/cli.
"""

from __future__ import annotations

import json
import multiprocessing.pool
from types import SimpleNamespace

import pytest
from conftest import make_tokenizer, save
from tiny_causal_models import tiny_decoder
from tiny_models import make
from transformers import BartConfig, BartForConditionalGeneration
from typer.testing import CliRunner

from unlimiformer.benchmarks import batch, encode, training
from unlimiformer.cli.main import app


def _bench(*arguments: object) -> None:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def _tiny_bart() -> BartForConditionalGeneration:
    """A model with the window and vocabulary of BART-base, and little else."""
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return BartForConditionalGeneration(BartConfig(**sizes, **layers)).eval()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of an encoder–decoder and of a decoder-only model."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = make_tokenizer()
    return {
        "t5": save(folder / "t5", make("t5"), tokenizer),
        "llama": save(folder / "llama", tiny_decoder("llama"), tokenizer),
    }


@pytest.fixture
def text(tmp_path, book):
    path = tmp_path / "book.txt"
    path.write_text("\n".join(book.split(" ")) * 20)
    return path


def test_encode(monkeypatch, tmp_path):
    monkeypatch.setattr(encode, "bart_base", _tiny_bart)
    output = tmp_path / "encode.json"
    _bench("encode", "--tokens", 3000, "--repeats", 1, "--batch-size", 2, "-o", output)
    figures = json.loads(output.read_text())
    assert figures["throughput_ratio"] > 0 and figures["short_input_ratio"] > 0
    assert figures["product_share_ours"] > 0 and figures["machine"]["float32_per_second"] > 0


def test_train(monkeypatch, tmp_path):
    """Every method, in threads instead of processes."""
    monkeypatch.setattr(training, "bart_base", _tiny_bart)
    context = SimpleNamespace(Pool=multiprocessing.pool.ThreadPool)
    monkeypatch.setattr(training.multiprocessing, "get_context", lambda method: context)
    output = tmp_path / "train.json"
    _bench("train", "--tokens", 2500, "--target", 4, "--repeats", 1, "-o", output)
    rows = {row["method"]: row for row in json.loads(output.read_text())["rows"]}
    methods = ["chunked", "random", "retrieval", "alternating", "sled", "memorizing"]
    assert list(rows) == [*training.PARTS, "standard", *methods]
    assert rows["standard"]["ratio_to_standard"] == 1 and rows["retrieval"]["ratio_to_parts"] > 0


@pytest.mark.parametrize(
    ("model", "methods"), [("t5", {"truncated", "SLED", "ours"}), ("llama", {"truncated", "ours"})]
)
def test_needle(models, text, tmp_path, model, methods):
    output = tmp_path / "needle.json"
    _bench("needle", "--model", models[model], "--text", text, "--lengths", "300,600", "--depths", 1, "-o", output)
    result = json.loads(output.read_text())
    assert {(row["method"], row["tokens"]) for row in result["accuracy"]} == {
        (method, length) for method in methods for length in (300, 600)
    }
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_run(monkeypatch, models, text, tmp_path):
    """A plain loop, and one worker process."""
    name = "1 worker"
    monkeypatch.setattr(batch, "_RUNS", {name: batch._RUNS[name]})
    output = tmp_path / "run.json"
    options = ("--documents", 3, "--tokens", 200, "--repeats", 1)
    _bench("run", "--model", models["t5"], "--text", text, *options, "-o", output)
    rows = json.loads(output.read_text())["rows"]
    assert [row["method"] for row in rows] == ["plain loop", name]
    assert rows[0]["of_loop"] == 1 and rows[1]["documents_per_hour"] > 0 and 0 <= rows[1]["waiting"] < 1
