"""An adapter that is in effect for questions about facts only."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from conftest import make_book, save
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_causal_models import tiny_decoder

from unlimiformer import Memory, Unlimiformer
from unlimiformer.errors import InputError
from unlimiformer.hub.lora_adapter import SHORT_ANSWERS

FACT, BROAD = "What did w5 say to w7?", "Describe w5 and w7."
SETTINGS = {"window": 64, "top_k": 48, "examples": False}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    """A plain model, the same with an adapter for short answers beside it, and with that adapter merged by peft."""
    folder = tmp_path_factory.mktemp("models")
    save(folder / "plain", tiny_decoder("llama"), tokenizer)
    torch.manual_seed(1)
    targets = ["q_proj", "v_proj", "down_proj"]
    config = LoraConfig("CAUSAL_LM", r=3, lora_alpha=6, target_modules=targets, layers_to_transform=[1, 2])
    adapted = get_peft_model(tiny_decoder("llama"), config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    shutil.copytree(folder / "plain", folder / "adapted")
    adapted.save_pretrained(folder / "adapted" / SHORT_ANSWERS)
    merged = PeftModel.from_pretrained(tiny_decoder("llama"), folder / "adapted" / SHORT_ANSWERS).merge_and_unload()
    save(folder / "merged", merged, tokenizer)
    return folder


@pytest.fixture
def book():
    return make_book(300)


def ask(folder, book, *questions, **options):
    """Answers of a model, in order, to questions about the book in one memory."""
    with Unlimiformer.from_pretrained(folder, **SETTINGS) as u:
        memory = u.index(book)
        return [u.generate(memory, prompt=q, max_new_tokens=6, **options).token_ids.tolist() for q in questions]


def test_facts_are_answered_with_the_adapter_and_all_else_without(folders, book):
    plain, adapted, merged = (ask(folders / name, book, FACT, BROAD, FACT) for name in ("plain", "adapted", "merged"))
    assert plain[0] != merged[0] and plain[1] != merged[1], "the adapter changes both answers"
    assert adapted == [merged[0], plain[1], merged[0]]


def test_questions_of_both_kinds_in_one_batch_keep_their_order(folders, book):
    with Unlimiformer.from_pretrained(folders / "adapted", **SETTINGS) as u:
        memory = u.index(book)
        questions = [BROAD, FACT, BROAD, "Who saw w9?"]
        alone = [u.generate(memory, prompt=question, max_new_tokens=6).token_ids.tolist() for question in questions]
        together = u.generate([memory] * 4, prompt=questions, max_new_tokens=6)
    assert [output.token_ids.tolist() for output in together] == alone


def test_the_plain_model_as_a_baseline_has_the_adapter_too(folders, book):
    def truncated(name, *questions):
        with Unlimiformer.from_pretrained(folders / name, **SETTINGS) as u:
            return [u.engine.truncated_generate([book], [q], {"max_new_tokens": 6})[0] for q in questions]

    plain, adapted, merged = (truncated(name, FACT, BROAD, FACT) for name in ("plain", "adapted", "merged"))
    assert plain[0] != merged[0]
    assert adapted == [merged[0], plain[1], merged[0]]


def test_layers_are_as_before_after_an_answer_or_an_error(folders, book):
    with Unlimiformer.from_pretrained(folders / "adapted", **SETTINGS) as u:
        memory = u.index(book)
        u.generate(memory, prompt=FACT, max_new_tokens=2)
        with pytest.raises(ValueError, match="temperature"):
            u.generate(memory, prompt=FACT, max_new_tokens=2, temperature=-1.0, do_sample=True)
        assert not any("forward" in module.__dict__ for module in u.model.modules())


def test_memories_are_those_of_the_plain_model(folders, book, tmp_path):
    with Unlimiformer.from_pretrained(folders / "plain", **SETTINGS) as u:
        u.index(book).save(tmp_path / "book.memory")
    with Unlimiformer.from_pretrained(folders / "adapted", **SETTINGS) as u:
        memory = Memory.load(tmp_path / "book.memory")
        assert u.generate(memory, prompt=FACT, max_new_tokens=2).token_ids.numel()


def damage(folder, **changes):
    """Change the files of an adapter: `config` replaces fields, `drop` and `reshape` name a matrix."""
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes.get("config", {})))
    matrices = load_file(weights)
    name = next(name for name in matrices if changes.get("matrix", "lora_B") in name)
    if changes.get("drop"):
        del matrices[name]
    if changes.get("reshape"):
        matrices[name] = torch.zeros(7, 3)
    if changes.get("rename"):
        matrices = {key.replace("layers.1", "layers.7"): matrix for key, matrix in matrices.items()}
    save_file(matrices, weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"r": 4}}, "rank 4"),
        ({"config": {"lora_alpha": "much"}}, "lora_alpha 'much'"),
        ({"drop": True}, "no matrices of rank 3"),
        ({"drop": True, "matrix": "lora_A"}, "is no LoRA adapter"),
        ({"reshape": True}, "does not have"),
        ({"rename": True}, "layers.7"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(folders, tmp_path, changes, message):
    shutil.copytree(folders / "adapted", tmp_path / "model")
    damage(tmp_path / "model" / SHORT_ANSWERS, **changes)
    with pytest.raises(InputError, match=message):
        Unlimiformer.from_pretrained(tmp_path / "model", **SETTINGS)


def test_damaged_weights_of_an_adapter_are_one_error(folders, tmp_path):
    shutil.copytree(folders / "adapted", tmp_path / "model")
    weights = tmp_path / "model" / SHORT_ANSWERS / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(InputError, match=r"adapter_model.safetensors"):
        Unlimiformer.from_pretrained(tmp_path / "model", **SETTINGS)
