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
from unlimiformer.engines.causal.answer_adapter import answers_digest
from unlimiformer.errors import InputError
from unlimiformer.hub.loading import load
from unlimiformer.hub.lora_adapter import SHORT_ANSWERS

FACT, BROAD = "What did w5 say to w7?", "Describe w5 and w7."
SETTINGS = {"window": 64, "top_k": 48, "prompt_examples": False}


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


def test_passages_are_selected_by_the_model_that_indexed_them(folders, book):
    """Heads of an adapted layer score: the adapter must not change what they find."""

    def selected(name):
        with Unlimiformer.from_pretrained(folders / name, **SETTINGS, layers=[2]) as u:
            return u.generate(u.index(book), prompt=FACT, max_new_tokens=6).selected.tolist()

    assert selected("adapted") == selected("plain") != selected("merged")


def test_the_plain_model_keeps_to_its_adapter_in_a_batch_of_both_kinds(folders, book):
    with Unlimiformer.from_pretrained(folders / "adapted", **SETTINGS) as u:
        texts, questions = [book, book[:500], book], [BROAD, FACT, FACT]
        ask = u.engine.truncated_generate
        alone = [ask([text], [q], {"max_new_tokens": 6})[0] for text, q in zip(texts, questions, strict=True)]
        assert ask(texts, questions, {"max_new_tokens": 6}) == alone


def test_other_selections_and_their_baselines_have_no_adapter(folders, book):
    def answers(name):
        with Unlimiformer.from_pretrained(folders / name, **SETTINGS, selection="blocks") as u:
            ours = u.generate(u.index(book), prompt=FACT, max_new_tokens=6).answer
            return ours, u.engine.truncated_generate([book], [FACT], {"max_new_tokens": 6})

    assert answers("adapted") == answers("plain")


def test_a_question_that_leaves_no_room_is_refused_by_the_baseline(folders, book):
    with Unlimiformer.from_pretrained(folders / "adapted", **SETTINGS) as u:
        for texts in ([book], [book, book]):
            with pytest.raises(InputError, match=r"have \d+ tokens, and the model reads at most"):
                u.engine.truncated_generate(texts, ["w5 " * 400] * len(texts), {"max_new_tokens": 6})


def test_an_adapter_is_in_effect_once(folders):
    with Unlimiformer.from_pretrained(folders / "adapted", **SETTINGS) as u:
        with u.engine.use_adapter(), pytest.raises(InputError, match="one call at a time"), u.engine.use_adapter():
            pass
        assert not any("forward" in module.__dict__ for module in u.model.modules())


def test_a_folder_beside_the_user_is_no_adapter_of_a_model_without_a_folder(folders, monkeypatch):
    monkeypatch.chdir(folders / "adapted")
    with Unlimiformer(tiny_decoder("llama"), **SETTINGS) as u:
        assert not u.engine.uses_adapter(FACT)


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


def test_another_adapter_gives_another_digest(folders, tmp_path):
    """So that an evaluation is not continued with it."""

    def digest(folder):
        return answers_digest(load(folder, torch.float32)[0])

    shutil.copytree(folders / "adapted", tmp_path / "model")
    assert digest(tmp_path / "model") == digest(folders / "adapted") != digest(folders / "plain")
    weights = tmp_path / "model" / SHORT_ANSWERS / "adapter_model.safetensors"
    save_file({name: 2 * matrix for name, matrix in load_file(weights).items()}, weights)
    assert digest(tmp_path / "model") != digest(folders / "adapted")


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
