"""Use the library without any optional package, and print the results as JSON; `test_core_install.py` checks them."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from conftest import make_book, make_tokenizer, save
from extras import optional_modules
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Memory, Unlimiformer
from unlimiformer.cli.main import app
from unlimiformer.errors import MissingPackageError
from unlimiformer.hub.loading import load
from unlimiformer.qa import DocumentQA

GREEDY = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}


def use_model(model: Any, folder: Path, **settings: Any) -> dict[str, Any]:
    """Index in RAM and on disk, generate from both with provenance, and answer a question."""
    book = make_book()
    with Unlimiformer(model, make_tokenizer(), **settings) as u:
        in_ram = u.index(book)
        u.index(book, folder=folder)
        outputs = [u.generate(m, prompt="w3", provenance=True, **GREEDY) for m in (in_ram, Memory.load(folder))]
        answer = DocumentQA(u, book).ask("w3", **GREEDY)
    return {
        "windows": in_ram.windows,
        "new_tokens": [output.new_tokens for output in outputs],
        "equal": outputs[0].text == outputs[1].text,
        "passages": len(outputs[0].provenance.passages()),
        "answer": answer.text,
    }


def run_command(*arguments: str) -> str:
    """Run a command in this process and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        app(list(arguments), standalone_mode=False)
    return printed.getvalue()


def missing_packages(folder: Path) -> dict[str, Callable[[], Any]]:
    """Calls that need an optional package, by name."""
    model_folder = save(folder / "t5", make("t5"), make_tokenizer())
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": model_folder}))
    (folder / "documents").mkdir()
    (folder / "documents" / "book.txt").write_text(make_book())
    (folder / "data.jsonl").write_text(json.dumps({"document": make_book(), "answer": "w1"}) + "\n")
    data, out = str(folder / "data.jsonl"), str(folder / "out")

    def index_with_faiss() -> None:
        with Unlimiformer(make("t5"), make_tokenizer(), window=WINDOW, top_k=9, store="faiss") as u:
            u.index(make_book())

    def draw_plot() -> None:
        from unlimiformer.utils.plotting import pyplot

        pyplot("bench")

    def tag_entities() -> None:
        from unlimiformer.evaluation.metrics.entities import EntityRecall

        EntityRecall()

    def score_with_bert() -> None:
        from unlimiformer.evaluation.metrics.bertscore import BertScore

        BertScore()

    def load_harness() -> None:
        import unlimiformer.integrations.lm_eval  # noqa: F401

    def ask_a_quantized_model() -> None:
        folder_of_it = save(folder / "quantized", tiny_decoder("llama"), make_tokenizer())
        config = json.loads((folder / "quantized" / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8"}}}
        (folder / "quantized" / "config.json").write_text(json.dumps(config))
        load(folder_of_it)

    def load_a_sentencepiece_tokenizer() -> None:
        from unlimiformer.hub.loading import load_tokenizer

        (folder / "marian").mkdir()
        (folder / "marian" / "config.json").write_text(json.dumps({"model_type": "marian"}))
        (folder / "marian" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))
        load_tokenizer(folder / "marian")

    def search_a_memory_of_faiss() -> None:
        from unlimiformer.datastore import ExactStore, restore

        restore({"store": "faiss"}, {"states": ExactStore.empty(2, 3, torch.float32).states}, lambda _: folder)

    decoder = ("--model", save(folder / "llama", tiny_decoder("llama"), make_tokenizer()))
    training = ("train", "--model", model_folder, "--data", data, "--steps", "1")
    needle = ("bench", "needle", *decoder, "--lengths", "100", "--depths", "1", "--text", str(folder / "data.jsonl"))
    model = ("--model", model_folder)
    return {
        "peft adapter": lambda: load(folder / "adapter"),
        "faiss store": index_with_faiss,
        "plot": draw_plot,
        "server": lambda: run_command("serve", *model, "--folder", str(folder / "library")),
        "ray": lambda: run_command(
            "run", str(folder / "documents"), "-o", f"{out}.jsonl", "--task", "index", *model, "--ray", "local"
        ),
        "rouge": lambda: run_command("evaluate", *model, "--data", data, "-o", out, "--metrics", "rouge"),
        "entities": tag_entities,
        "bertscore": score_with_bert,
        "harness": load_harness,
        "mcp": lambda: run_command("mcp", *model, "--folder", str(folder / "library")),
        "needle with speed": lambda: run_command(*needle, "--no-baselines", "--speed"),
        "needle with a plot": lambda: run_command(*needle, "-o", f"{out}.json"),
        "adapter training": lambda: run_command(*training, "-o", f"{out}-adapter", "--lora", "2"),
        "training by rouge": lambda: run_command(
            *training, "-o", f"{out}-rouge", "--validation", data, "--metric", "rouge"
        ),
        "hub data set": lambda: run_command(*training[:3], "-o", f"{out}-hub", "--data", "qmsum", "--steps", "1"),
        "model of a package": lambda: run_command("models", "get", "flan-t5-small"),
        "translation model": lambda: run_command("models", "get", "opus-mt-en-fr"),
        "quantized model": ask_a_quantized_model,
        "sentencepiece tokenizer": load_a_sentencepiece_tokenizer,
        "memory of faiss": search_a_memory_of_faiss,
    }


def error_of(call: Callable[[], Any]) -> list[str]:
    """Class and message of the error that a call raises."""
    try:
        call()
    except MissingPackageError as error:
        return [type(error).__name__, str(error)]
    except Exception as error:
        return [f"{type(error).__module__}.{type(error).__qualname__}", str(error)]
    return ["no error", ""]


def main(folder: Path) -> None:
    """Print all results."""
    results: dict[str, Any] = {
        "encoder-decoder": use_model(make("bart"), folder / "bart.memory", window=WINDOW, top_k=9),
        "decoder-only": use_model(tiny_decoder("llama"), folder / "llama.memory", window=64, top_k=16, block=8),
        "families": run_command("families", "--json"),
    }
    results["errors"] = {name: error_of(call) for name, call in missing_packages(folder).items()}
    results["imported"] = sorted(optional_modules() & set(sys.modules))
    print(json.dumps(results))
