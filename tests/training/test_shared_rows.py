"""Questions that share one reading of their document: losses and gradients of separate rows."""

from __future__ import annotations

import pytest
import torch
from tiny_causal_models import DECODERS, VOCABULARY, tiny_decoder

from unlimiformer.errors import InputError
from unlimiformer.training.shared_rows import SharedRow

LENGTHS = ((4, 2), (3, 5), (6, 1))  # of questions and answers


@pytest.fixture
def parts():
    torch.manual_seed(0)
    document, *rest = (torch.randint(3, VOCABULARY, (n,)) for n in (15, *(n for pair in LENGTHS for n in pair)))
    return document, rest[::2], rest[1::2]


def plain_loss(model, document, question, answer):
    """Summed loss of an answer behind its document and question, as the model itself computes it."""
    ids = torch.cat((document, question, answer))
    labels = torch.cat((torch.full_like(ids[: -len(answer)], -100), answer))
    return model(input_ids=ids[None], labels=labels[None]).loss * len(answer)


@pytest.mark.parametrize("family", DECODERS)
def test_loss_and_gradients_are_those_of_separate_rows(family, parts):
    document, questions, answers = parts
    model = tiny_decoder(family).eval()
    separate = sum(plain_loss(model, document, *pair) for pair in zip(questions, answers, strict=True))
    separate.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    shared = SharedRow.build(document, questions, answers).loss(model, model)
    shared.backward()
    torch.testing.assert_close(shared, separate, atol=1e-4, rtol=1e-5)
    assert expected
    for name, weight in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(weight.grad, expected[name], atol=1e-4, rtol=1e-3)


def test_a_question_does_not_see_the_others(parts):
    document, questions, answers = parts
    model = tiny_decoder("qwen2").eval()
    rows = [SharedRow.build(document, [questions[0], other], [answers[0], answers[1]]) for other in questions[1:]]
    logits = [
        model(
            input_ids=row.ids[None],
            position_ids=row.positions[None],
            attention_mask=torch.zeros(row.mask.shape).masked_fill(~row.mask, -1e9)[None, None],
        ).logits[0, row.predicting[: len(answers[0])]]
        for row in rows
    ]
    torch.testing.assert_close(*logits)


def test_rows_longer_than_a_sliding_window_are_refused(parts):
    document, questions, answers = parts
    model = tiny_decoder("mistral, sliding")
    with pytest.raises(InputError, match=r"has 37 tokens, .* the last 24;"):
        SharedRow.build(document.repeat(2), questions, answers).loss(model, model)


def test_the_model_may_be_wrapped_for_several_processes(parts):
    """`DistributedDataParallel` has neither the config nor the dtype of the model inside."""
    model, row = tiny_decoder("qwen2").eval(), SharedRow.build(*parts)
    torch.testing.assert_close(row.loss(lambda **arguments: model(**arguments), model), row.loss(model, model))
