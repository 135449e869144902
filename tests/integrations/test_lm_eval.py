"""The model class for lm-evaluation-harness, and the harness's command line with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from conftest import make_book, make_tokenizer, save
from tiny_causal_models import LIMIT, tiny_decoder
from tiny_models import make

from unlimiformer.errors import InputError, UnsupportedModelError
from unlimiformer.integrations.lm_eval import UnlimiformerLM


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    return save(tmp_path_factory.mktemp("llama"), tiny_decoder("llama"), make_tokenizer())


def _load_lm(folder, **changes):
    settings = {"pretrained": folder, "window": 32, "top_k": 8, "block": 4, "max_gen_toks": 8, "batch_size": 1}
    return UnlimiformerLM(**{**settings, **changes})


def _shorten(lm, text, room):
    """The token ids that the model reads of a prompt."""
    return lm.tok_batch_encode([text], left_truncate_len=room)[0][0].tolist()


def test_short_prompt_is_unchanged(folder):
    lm = _load_lm(folder)
    assert _shorten(lm, "w1 w2 w3", LIMIT) == lm.tok_encode("w1 w2 w3")
    ids, mask = lm.tok_batch_encode(["w1 w2 w3", "w1"])
    expected_ids, expected_mask = super(UnlimiformerLM, lm).tok_batch_encode(["w1 w2 w3", "w1"])
    assert torch.equal(ids, expected_ids) and torch.equal(mask, expected_mask)


def test_likelihoods_equal_the_plain_model_on_shortened_prompts(folder):
    from lm_eval.api.instance import Instance

    lm = _load_lm(folder)
    requests = [
        Instance("loglikelihood", {}, (make_book(words), f" w{index}"), index)
        for index, words in enumerate((5, 900, 900))
    ]
    results = lm.loglikelihood(requests, disable_tqdm=True)
    for request, (likelihood, greedy) in zip(requests, results, strict=True):
        prompt, continuation = lm._encode_pair(*request.args)
        assert prompt == lm.tok_encode(request.args[0])
        shortened = _shorten(lm, request.args[0], LIMIT - len(continuation))
        assert len(shortened) + len(continuation) <= LIMIT
        with torch.no_grad():
            logits = lm.model(torch.tensor([[*shortened, *continuation]])).logits[0].log_softmax(-1)
        rows = logits[len(shortened) - 1 : -1]
        expected = float(rows.gather(1, torch.tensor(continuation)[:, None]).sum())
        assert likelihood == pytest.approx(expected, abs=1e-4)
        assert greedy == (rows.argmax(-1).tolist() == continuation)


def test_long_answer_leaves_less_room_for_the_prompt(folder):
    lm = _load_lm(folder)
    prompt = make_book(LIMIT - 100)
    whole, _ = lm.tok_batch_encode([prompt], left_truncate_len=LIMIT - 8)
    shortened, _ = lm.tok_batch_encode([prompt], left_truncate_len=LIMIT - 300)
    assert whole.shape[1] > LIMIT - 101 and shortened.shape[1] < LIMIT - 300
    assert torch.equal(shortened[:, -20:], whole[:, -20:])


def test_unusable_models_and_settings_are_refused(folder, tmp_path):
    encoder_decoder = save(tmp_path / "bart", make("bart"), make_tokenizer())
    with pytest.raises(UnsupportedModelError, match="is an encoder–decoder; the harness asks decoder-only models"):
        UnlimiformerLM(pretrained=encoder_decoder)
    with pytest.raises(InputError, match="max_gen_toks is 512"):
        _load_lm(folder, max_gen_toks=512)
    with pytest.raises(InputError, match="dtype is 'float7'; expected auto"):
        _load_lm(folder, dtype="float7")


def test_missing_package_is_reported_without_traceback(tmp_path):
    (tmp_path / "lm_eval.py").write_text("raise ModuleNotFoundError('gone', name='lm_eval')")
    code = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); "
    code += "runpy.run_module('unlimiformer.integrations.lm_eval', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "error: lm-evaluation-harness needs the package 'lm_eval'" in done.stderr
    assert "pip install 'unlimiformer-hf[harness]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_command_line(folder, tmp_path):
    rows = [{"text": make_book(900), "question": f"w{n}", "answer": "w5"} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "long.yaml").write_text(
        f"""task: long_words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}} {{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["w0"], max_gen_toks: 4}}
metric_list: [{{metric: exact_match}}]
"""
    )
    arguments = f"pretrained={folder},window=32,top_k=8,block=4,max_gen_toks=8"
    command = ["run", "--model", "unlimiformer", "--model_args", arguments, "--tasks", "long_words", "--device", "cpu"]
    command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"), "--log_samples"]
    done = subprocess.run(
        [sys.executable, "-m", "unlimiformer.integrations.lm_eval", *command],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "long_words" in done.stdout and "exact_match" in done.stdout
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    assert len(samples.read_text().splitlines()) == 2
    assert "Left truncation" not in done.stderr + done.stdout, "nothing was truncated"
