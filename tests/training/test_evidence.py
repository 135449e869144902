"""The loss that draws a question's attention to where the answer is."""

from __future__ import annotations

import pytest
import torch
from conftest import make_book
from reference import encoded
from tiny_models import WINDOW, make
from training_helpers import read_metrics, write_jsonl

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq.attention import EVERYTHING
from unlimiformer.errors import InputError
from unlimiformer.qa import QuestionFormat
from unlimiformer.tasks import Example
from unlimiformer.training import train
from unlimiformer.training.evidence import EvidenceLoss


def _examples(count=3):
    """Questions of different lengths about one document; the evidence of each is two of its words."""
    words = make_book(120).split()
    document = " ".join(words)
    starts = [len(" ".join(words[:at])) + 1 for at in (20, 60, 90)]
    spans = [
        ((start, start + len(" ".join(words[at : at + 2]))),) for start, at in zip(starts, (20, 60, 90), strict=True)
    ]
    questions = ["w3", "w4 w5", "w6 w7 w8"]
    return [Example(document, "w1", q, evidence=span) for q, span in zip(questions, spans, strict=True)][:count]


def _loss(wrapped, examples, **changes):
    settings = {"batch_size": 8, "source_limit": None, "seed": 0, **changes}
    return EvidenceLoss(wrapped, examples, QuestionFormat("decoder", "{question}"), **settings)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_loss_equals_the_plain_models_attention(tokenizer, family):
    model, examples = make(family), _examples()
    with Unlimiformer(model, tokenizer, window=WINDOW, top_k=EVERYTHING) as u:
        memory = u.index(examples[0].document)
        loss = _loss(u, examples)(0)
        model.set_attn_implementation("eager")
        expected = []
        for example, at in zip(examples, (20, 60, 90), strict=True):
            ids = tokenizer(example.question, add_special_tokens=False, return_tensors="pt")["input_ids"]
            ids = torch.cat((torch.tensor([[model.config.decoder_start_token_id]]), ids), dim=1)
            states = memory.store.states[None]
            with torch.no_grad():
                output = model(**encoded(states), decoder_input_ids=ids, output_attentions=True)
            weights = torch.stack(output.cross_attentions).mean(dim=(0, 1, 2, 3))
            first = at + (1 if family == "bart" or tokenizer("w1")["input_ids"][0] == tokenizer.bos_token_id else 0)
            expected.append(-weights[first : first + 2].sum().log())
    assert float(loss) == pytest.approx(float(torch.stack(expected).mean()), rel=1e-4)
    loss.backward()
    changed = [name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    assert any("decoder" in name for name in changed) and not any(".encoder." in f".{name}" for name in changed)


def test_training_moves_attention_to_the_evidence(make_settings, tmp_path, tokenizer, model_folder):
    rows = [
        {
            "document": example.document,
            "questions": [
                {"question": example.question, "answer": "w1", "spans": [list(span) for span in example.evidence]}
            ],
        }
        for example in _examples()
    ]
    data = write_jsonl(tmp_path / "data.jsonl", rows)
    changes = {"data": data, "question": "decoder", "form": "{question}", "method": "retrieval", "batch_size": 3}
    settings = make_settings(**changes, evidence=1.0, steps=30, learning_rate=3e-3, dropout=0.0, validate_every=None)
    train(settings, tmp_path / "trained")
    losses = []
    for folder in (model_folder, tmp_path / "trained"):
        with Unlimiformer.from_pretrained(folder, window=WINDOW, top_k=8) as u, torch.no_grad():
            losses.append(float(_loss(u, _examples())(0)))
    assert losses[1] < losses[0] / 2
    assert read_metrics(tmp_path / "trained")[-1]["train_loss"] > 0


def test_every_batch_comes_once_in_an_epoch(tokenizer, monkeypatch):
    examples = [Example(f"w{n} w1 w2", "w1", "w3", evidence=((0, 2),)) for n in range(5)]
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW) as u:
        loss, seen = _loss(u, examples), []
        monkeypatch.setattr(loss, "loss", lambda document, questions: seen.append(document))
        for step in range(10):
            loss(step)
    assert len(set(seen[:5])) == 5 and sorted(seen[:5]) == sorted(seen[5:]) and seen[:5] != seen[5:]


def test_evidence_behind_the_limit_is_left_out(tokenizer):
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW) as u:
        assert float(_loss(u, _examples(), source_limit=10)(0)) == 0
        assert float(_loss(u, _examples(), source_limit=40)(0)) == pytest.approx(
            float(_loss(u, _examples(1), source_limit=40)(0))
        )
        with pytest.raises(InputError, match="no example has evidence"):
            _loss(u, [Example("w1", "w2", "w3")])


def test_settings_of_evidence(make_settings):
    with pytest.raises(InputError, match="evidence is -1; expected 0 or more"):
        make_settings(evidence=-1)
    with pytest.raises(InputError, match="evidence_data was given without a weight"):
        make_settings(evidence_data="d.jsonl")
