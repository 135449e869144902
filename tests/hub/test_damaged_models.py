"""Folders of models with one fault each give one clear error, soon, and nothing in them is run."""

from __future__ import annotations

import shutil

import pytest
from conftest import make_book, make_tokenizer, save
from damaged_models import ADAPTER, ADAPTER_DAMAGE, MODEL_DAMAGE, SEQ2SEQ_DAMAGE, fields
from tiny_causal_models import tiny_decoder
from tiny_models import make
from warm_cli import run

from unlimiformer import Unlimiformer, UnlimiformerError
from unlimiformer.hub.checks import foreign_errors
from unlimiformer.qa import DocumentQA, QuestionFormat

CASES = [
    *(pytest.param("llama", damage, id=name) for name, damage in MODEL_DAMAGE.items()),
    *(pytest.param("t5", damage, id=f"encoder-decoder, {name}") for name, damage in SEQ2SEQ_DAMAGE.items()),
    *(pytest.param("lora", damage, id=f"adapter: {name}") for name, damage in ADAPTER_DAMAGE.items()),
]
_THROUGH_THE_COMMAND_LINE = {
    "weights: cut in the numbers": "SafetensorError",
    "pickle: hostile, by torch": "which is never read",
    "config: deep": "config.json cannot be read",
    "config: text as layers": "num_hidden_layers",
    "generation: text as beams": "num_beams 'many'",
    "tokenizer: unknown model": "tokenizer files cannot be used",
    "template: loops without end": "it needs more than",
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Sound folders, by kind."""
    from peft import LoraConfig, get_peft_model

    folder = tmp_path_factory.mktemp("models")
    for name in ("llama", "gemma2"):
        save(folder / name, tiny_decoder(name), make_tokenizer())
    save(folder / "t5", make("t5"), make_tokenizer())
    config = LoraConfig("CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
    get_peft_model(tiny_decoder("llama"), config).save_pretrained(folder / "lora")
    fields(ADAPTER, base_model_name_or_path=str(folder / "llama"))(folder / "lora")
    return folder


@pytest.fixture
def damaged(originals):
    """Make a damaged copy of a sound folder, next to it."""
    folder = originals / "damaged"

    def copy(kind, damage):
        shutil.copytree(originals / kind, folder)
        damage(folder)
        return folder

    yield copy
    shutil.rmtree(folder, ignore_errors=True)


def _ask(folder):
    with Unlimiformer.from_pretrained(folder) as wrapped:
        return DocumentQA(wrapped, make_book(120), QuestionFormat.for_model(str(folder))).ask("w3", max_new_tokens=3)


@pytest.mark.parametrize("kind", ["llama", "t5", "lora"])
def test_the_sound_folders_answer(originals, kind):
    assert _ask(originals / kind).output.new_tokens == 3


@pytest.mark.parametrize(("kind", "damage"), CASES)
def test_a_damaged_folder_is_one_clear_error(damaged, originals, kind, damage):
    folder = damaged(kind, damage)
    with pytest.raises(UnlimiformerError) as caught:
        _ask(folder)
    message = str(caught.value)
    assert message.strip() and len(message) < 1000
    assert not (originals / "was-run").exists(), "something of the folder was run"


@pytest.mark.parametrize("name", _THROUGH_THE_COMMAND_LINE)
def test_the_command_line_prints_one_line(damaged, book_file, name):
    folder = damaged("llama", MODEL_DAMAGE[name])
    error = run("ask", book_file, "w3", "--model", str(folder), code=2).stderr.decode()
    assert error.startswith("error: ") and error.count("\n") == 1
    assert _THROUGH_THE_COMMAND_LINE[name] in error


@pytest.fixture
def book_file(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(make_book(120))
    return str(path)


def test_an_interruption_is_not_taken_for_a_fault_of_the_model():
    with pytest.raises(KeyboardInterrupt), foreign_errors("model", "weights"):
        raise KeyboardInterrupt
