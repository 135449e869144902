"""Loading: incomplete checkpoints and models that bring code are refused; nothing is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_tokenizer, save
from safetensors.torch import load_file, save_file
from tiny_causal_models import tiny_decoder
from tiny_models import make

from unlimiformer import Unlimiformer, UnsupportedModelError
from unlimiformer.errors import InputError, UnlimiformerError
from unlimiformer.hub.loading import load


@pytest.fixture(params=["bart", "t5", "llama"])
def folder(request, tmp_path):
    model = tiny_decoder("llama") if request.param == "llama" else make(request.param)
    return tmp_path, save(tmp_path / "model", model, make_tokenizer())


def _change_weights(path, change) -> str:
    """Apply `change` to the checkpoint's tensors; returns the name of a tensor that is neither tied nor first."""
    file = f"{path}/model.safetensors"
    tensors = load_file(file)
    name = next(name for name in sorted(tensors, reverse=True) if "layer" in name or "block" in name)
    change(tensors, name)
    save_file(tensors, file, {"format": "pt"})
    return name


def _change_config(path, **fields) -> None:
    file = Path(path) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_whole_checkpoint_loads(folder):
    model, tokenizer = load(folder[1])
    assert not model.training and len(tokenizer) == 97


def test_missing_tensor_is_named(folder):
    name = _change_weights(folder[1], lambda tensors, name: tensors.pop(name))
    with pytest.raises(UnsupportedModelError, match="1 tensors are missing") as caught:
        load(folder[1])
    assert name in str(caught.value)


def test_unexpected_tensor_is_named(folder):
    def add(tensors, name):
        tensors["model.layers.99.extra.weight"] = tensors[name].clone()

    _change_weights(folder[1], add)
    with pytest.raises(UnsupportedModelError, match=r"1 tensors are unexpected.*layers\.99\.extra"):
        load(folder[1])


def test_tensor_of_another_size_is_named(folder):
    name = _change_weights(folder[1], lambda tensors, name: tensors.update({name: tensors[name][:-1].clone()}))
    with pytest.raises(UnlimiformerError, match=name.replace(".", r"\.")):
        load(folder[1])


def test_config_that_claims_more_layers_is_refused(folder):
    config = json.loads((Path(folder[1]) / "config.json").read_text())
    names = [n for n in ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers") if n in config]
    assert names
    _change_config(folder[1], **{name: config[name] + 1 for name in names})
    with pytest.raises(UnsupportedModelError, match="are missing"):
        Unlimiformer.from_pretrained(folder[1])


_HOSTILE = "import pathlib\npathlib.Path({mark!r}).touch()\n"


def _make_hostile(path, mark) -> None:
    """A folder whose config, model and tokenizer name classes in a Python file beside it."""
    code = _HOSTILE.format(mark=str(mark))
    code += "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
    code += "class C(LlamaConfig):\n    model_type = 'hostile'\nclass M(LlamaForCausalLM):\n    config_class = C\n"
    code += "class T(PreTrainedTokenizerFast):\n    pass\n"
    (path / "hostile.py").write_text(code)
    auto_map = {"AutoConfig": "hostile.C", "AutoModelForCausalLM": "hostile.M", "AutoModelForSeq2SeqLM": "hostile.M"}
    _change_config(path, model_type="hostile", auto_map=auto_map)


@pytest.mark.parametrize("answer", ["y\n" * 50, ""], ids=["yes on standard input", "no input"])
def test_code_of_a_model_is_never_run(tmp_path, answer):
    folder = tmp_path / "model"
    save(folder, tiny_decoder("llama"), make_tokenizer())
    _make_hostile(folder, tmp_path / "was-run")
    command = [sys.executable, "-m", "unlimiformer", "ask", "-", "Who?", "--model", str(folder)]
    done = subprocess.run(command, input=answer or "text", capture_output=True, text=True, timeout=120)
    assert not (tmp_path / "was-run").exists(), "the folder's code ran"
    assert done.returncode == 2
    assert "never runs such code" in done.stderr and "Traceback" not in done.stderr


def test_code_of_a_tokenizer_is_never_run(tmp_path):
    folder = tmp_path / "model"
    save(folder, tiny_decoder("llama"), make_tokenizer())
    (folder / "hostile.py").write_text(_HOSTILE.format(mark=str(tmp_path / "was-run")) + "class T:\n    pass\n")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["hostile.T", None]}}))
    script = "import sys\nfrom unlimiformer.hub.loading import load\nload(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, str(folder)], input="y\n" * 9, capture_output=True, text=True)
    assert not (tmp_path / "was-run").exists(), "the folder's code ran"


def test_folder_without_config_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no config\.json"):
        load(tmp_path)


def test_nothing_is_printed(tmp_path):
    """Neither importing nor loading shows notices of other libraries, except the progress bar of transformers."""
    folder = save(tmp_path / "model", make("t5"), make_tokenizer())
    script = "import sys\nfrom unlimiformer import Unlimiformer\nUnlimiformer.from_pretrained(sys.argv[1]).remove()"
    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.replace("\r", "\n").splitlines() if line and "Loading weights" not in line]
    assert not lines and not done.stdout
