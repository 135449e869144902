"""lm-evaluation-harness, by its own command line, on one of our models."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from conftest import make_book, make_tokenizer, save
from tiny_causal_models import LIMIT, tiny_decoder
from tiny_models import make

from unlimiformer.errors import UnlimiformerError
from unlimiformer.integrations.lm_eval import UnlimiformerLM


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    return save(tmp_path_factory.mktemp("llama"), tiny_decoder("llama"), make_tokenizer())


def _lm(folder, **changes):
    settings = {"pretrained": folder, "window": 32, "top_k": 8, "block": 4, "max_gen_toks": 8, "batch_size": 1}
    return UnlimiformerLM(**{**settings, **changes})


def test_a_short_prompt_is_read_as_it_is(folder):
    lm = _lm(folder)
    ids = lm.tok_encode("w1 w2 w3")
    assert lm._read(ids, LIMIT) == ids
    ours, mask = lm.tok_batch_encode(["w1 w2 w3", "w1"])
    theirs, theirs_mask = super(UnlimiformerLM, lm).tok_batch_encode(["w1 w2 w3", "w1"])
    assert torch.equal(ours, theirs) and torch.equal(mask, theirs_mask)


def test_likelihoods_are_those_of_the_plain_model_behind_what_is_read(folder):
    from lm_eval.api.instance import Instance

    lm = _lm(folder)
    requests = [
        Instance("loglikelihood", {}, (make_book(words), f" w{number}"), number)
        for number, words in enumerate((5, 900, 900))
    ]
    found = lm.loglikelihood(requests, disable_tqdm=True)
    for request, (likelihood, greedy) in zip(requests, found, strict=True):
        prompt, continuation = lm._encode_pair(*request.args)
        shown = lm._read(prompt, LIMIT - len(continuation))
        assert len(shown) + len(continuation) <= LIMIT
        with torch.no_grad():
            logits = lm.model(torch.tensor([[*shown, *continuation]])).logits[0].log_softmax(-1)
        rows = logits[len(shown) - 1 : -1]
        expected = float(rows.gather(1, torch.tensor(continuation)[:, None]).sum())
        assert likelihood == pytest.approx(expected, abs=1e-4)
        assert greedy == (rows.argmax(-1).tolist() == continuation)


def test_a_long_answer_leaves_less_room_for_a_prompt(folder):
    lm = _lm(folder)
    prompt = make_book(LIMIT - 100)
    whole, _ = lm.tok_batch_encode([prompt], left_truncate_len=LIMIT - 8)
    shown, _ = lm.tok_batch_encode([prompt], left_truncate_len=LIMIT - 300)
    assert whole.shape[1] > LIMIT - 101 and shown.shape[1] < LIMIT - 300
    assert torch.equal(shown[:, -20:], whole[:, -20:])


def test_what_cannot_be_asked_is_refused(folder, tmp_path):
    crossing = save(tmp_path / "bart", make("bart"), make_tokenizer())
    with pytest.raises(UnlimiformerError, match="is an encoder–decoder; the harness asks decoder-only models"):
        UnlimiformerLM(pretrained=crossing)
    with pytest.raises(UnlimiformerError, match="max_gen_toks is 512"):
        _lm(folder, max_gen_toks=512)


def test_its_own_command_line(folder, tmp_path):
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
    assert "Left truncation" not in done.stderr + done.stdout, "nothing was cut off"
