"""Tokenized training examples, their batches, and the order in which they are drawn."""

from __future__ import annotations

import random

import pytest
import torch

from unlimiformer.errors import InputError
from unlimiformer.qa import QuestionFormat
from unlimiformer.tasks import Example
from unlimiformer.training import LengthLimits, Seq2SeqDataset
from unlimiformer.training.dataset import IGNORE_INDEX, Collator, GroupedSampler, whole_document
from unlimiformer.training.strategies import STRATEGIES

NO_LIMITS = LengthLimits(None, None)


def _dataset(tokenizer, examples, place, method=None, limits=NO_LIMITS):
    question_format = QuestionFormat(place, "{question}")
    split_document = whole_document if method is None else STRATEGIES[method](8).inputs
    return Seq2SeqDataset(examples, tokenizer, question_format, limits=limits, window=16, split_document=split_document)


def test_chunks_cover_the_document_once_and_fit_the_window(tokenizer):
    document = " ".join(f"w{i}" for i in range(48))
    dataset = _dataset(tokenizer, [Example(document, "w1", "w2 w3")], "window", "chunked")
    items = [dataset[i] for i in range(len(dataset))]
    assert all(len(item["prefix_ids"]) + len(item["input_ids"]) <= 16 for item in items)
    tokens = [token for item in items for token in item["input_ids"].tolist() if token not in (1, 2)]
    assert tokens == tokenizer(document, add_special_tokens=False)["input_ids"]
    assert all(int(item["input_ids"][-1]) == tokenizer.eos_token_id for item in items)


@pytest.mark.parametrize(("words", "chunks"), [(45, [12, 12, 12]), (46, [12, 12, 12, 10]), (3, [3])])
def test_a_last_chunk_of_fewer_than_ten_tokens_is_left_out(tokenizer, words, chunks):
    document = " ".join(f"w{i}" for i in range(words))
    dataset = _dataset(tokenizer, [Example(document, "w1", "w2 w3")], "window", "chunked")
    assert [len(dataset[i]["input_ids"]) - 1 for i in range(len(dataset))] == chunks


def test_question_once_in_front_is_part_of_the_document(tokenizer):
    dataset = _dataset(tokenizer, [Example("w5 w6", "w7", "w9")], "first", "retrieval")
    assert tokenizer.decode(dataset[0]["input_ids"]) == "<s> w9 w5 w6 </s>"
    assert dataset[0]["prefix_ids"].numel() == 0 and dataset[0]["prompt_ids"].numel() == 0


@pytest.mark.parametrize("place", ["window", "first", "decoder"])
def test_nothing_stands_before_the_document_of_a_summary(tokenizer, place):
    dataset = _dataset(tokenizer, [Example("w5 w6", "w7")], place, "retrieval")
    assert tokenizer.decode(dataset[0]["input_ids"]) == "<s> w5 w6 </s>"
    assert dataset[0]["prefix_ids"].numel() == 0 and dataset[0]["prompt_ids"].numel() == 0


def test_collator_makes_the_inputs_of_the_plain_model(tokenizer):
    """Within the window the question is part of the input; the decoder's input is the labels, shifted by one."""
    dataset = _dataset(tokenizer, [Example("w5 w6", "w7 w8", "w9")], "window", "standard")
    batch = Collator(0, 2, 16)([dataset[0]])
    assert tokenizer.decode(batch["input_ids"][0]) == "<s> w9 w5 w6 </s>"
    assert "prefix_ids" not in batch
    assert torch.equal(batch["labels"][0, :-1], batch["decoder_input_ids"][0, 1:])


def test_question_in_the_decoder_has_no_loss(tokenizer):
    dataset = _dataset(tokenizer, [Example("w5 w6", "w7", "w9 w10")], "decoder", "standard")
    batch = Collator(0, 2, 16)([dataset[0]])
    question_ids = tokenizer("w9 w10", add_special_tokens=False)["input_ids"]
    assert batch["decoder_input_ids"][0, :3].tolist() == [2, *question_ids]
    assert batch["labels"][0, :2].tolist() == [IGNORE_INDEX] * 2 and batch["labels"][0, 2] != IGNORE_INDEX


def test_truncated_answer_keeps_its_end_token(tokenizer):
    examples = [Example("w5", " ".join(["w1"] * 9))]
    dataset = _dataset(tokenizer, examples, "window", "standard", LengthLimits(None, 4))
    assert len(dataset[0]["answer_ids"]) == 4 and int(dataset[0]["answer_ids"][-1]) == tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (Example("w5", "w1", " ".join(["w2"] * 20)), "a question has 21 tokens and the window 16; expected room"),
        (Example(" ", "w1", "w2"), "a document has no tokens: ' '"),
    ],
)
def test_unusable_examples_are_refused(tokenizer, example, message):
    with pytest.raises(InputError, match=message):
        _dataset(tokenizer, [example], "window")


def test_sampler_groups_questions_of_one_document(tokenizer):
    """Every epoch has another random order; every item is drawn once, and each batch has one document."""
    examples = [Example(f"w{d} w1 w2 w3", "w4", f"w{q}") for q in range(3) for d in range(5)]
    sampler = GroupedSampler(_dataset(tokenizer, examples, "decoder"), 3, seed=1)
    epochs = []
    for epoch in (0, 1, 1):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
        documents = [examples[index].document for index in epochs[-1]]
        assert sorted(epochs[-1]) == list(range(15)) and len(sampler) == 15
        assert all(len(set(documents[i : i + 3])) == 1 for i in range(0, 15, 3))
    assert epochs[0] != epochs[1] == epochs[2]


def test_sampler_packs_groups_of_different_sizes(tokenizer):
    sizes = (3, 5, 2, 8, 1, 3, 2)
    examples = [Example(f"w{d} w1", "w4", f"w{q}") for d, size in enumerate(sizes) for q in range(size)]
    order = list(GroupedSampler(_dataset(tokenizer, examples, "decoder"), 4, seed=0))
    assert sorted(order) == list(range(24))
    batches = [{examples[index].document for index in order[i : i + 4]} for i in range(0, 24, 4)]
    assert sum(len(documents) for documents in batches) <= 11, "a random order has about 20"


def test_sampler_puts_inputs_of_similar_length_together(tokenizer):
    """Batches, but for some at the borders of what is sorted, hold inputs of nearly the same length."""
    generator = random.Random(0)
    lengths = [generator.randint(1, 10) for _ in range(400)]
    examples = [Example(" ".join(["w1"] * length), "w4", f"w{n % 9}") for n, length in enumerate(lengths)]
    dataset = _dataset(tokenizer, examples, "window")
    order = list(GroupedSampler(dataset, 4, seed=0))
    assert sorted(order) == list(range(400))
    spreads = [
        max(lengths[i] for i in order[b : b + 4]) - min(lengths[i] for i in order[b : b + 4]) for b in range(0, 400, 4)
    ]
    assert sum(spreads) < 100, "random batches have about 600"
    batches = [lengths[order[b]] for b in range(0, 400, 4)]
    assert batches != sorted(batches), "long and short batches come in a random order"


def test_equal_inputs_stay_separate_from_their_prefixes(tokenizer):
    """A batch with equal inputs is encoded into shared memories, so its inputs are not joined with the prefixes."""
    examples = [Example(f"w{d} w1 w2 w3", "w4", f"w{q}") for q in range(2) for d in range(2)]
    dataset = _dataset(tokenizer, examples, "decoder")
    assert dataset.input_groups == [[0, 2], [1, 3]]
    assert "prefix_ids" in Collator(0, 0, 16)([dataset[0], dataset[2]])
    assert "prefix_ids" not in Collator(0, 0, 16)([dataset[0], dataset[1]])
    with_prefixes = _dataset(tokenizer, examples, "window")
    assert with_prefixes.input_groups == [[0], [1], [2], [3]], "a question before every window changes the input"
