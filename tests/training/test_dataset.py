"""What becomes of examples in training, and the recipes."""

from __future__ import annotations

import pytest
import torch

from unlimiformer.errors import UnlimiformerError
from unlimiformer.qa import QuestionFormat
from unlimiformer.tasks import Example
from unlimiformer.training import LengthLimits, Seq2SeqDataset, TrainingSettings, recipes
from unlimiformer.training.dataset import IGNORED, Collator, GroupedSampler
from unlimiformer.training.settings import read_recipe
from unlimiformer.training.strategies import STRATEGIES


def _features(tokenizer, example, place, inputs, limits=None, window=16):
    limits = limits or LengthLimits(None, None)
    return Seq2SeqDataset([example], tokenizer, QuestionFormat(place, "{question}"), limits, window, inputs)


def test_chunks_cover_the_document_once_and_fit_the_window(tokenizer):
    words = [f"w{i}" for i in range(40)]
    example = Example(" ".join(words), "w1", "w2 w3")
    made = _features(tokenizer, example, "window", STRATEGIES["chunked"](8).inputs)
    inputs = [made[i] for i in range(len(made))]
    assert all(len(each["prefix_ids"]) + len(each["input_ids"]) <= 16 for each in inputs)
    seen = [token for each in inputs for token in each["input_ids"].tolist() if token not in (1, 2)]
    assert seen == tokenizer(" ".join(words), add_special_tokens=False)["input_ids"]
    assert all(int(each["input_ids"][-1]) == tokenizer.eos_token_id for each in inputs)


def test_the_collator_gives_the_plain_model_what_it_expects(tokenizer):
    """Within the window the question is part of the input; the decoder's text is the labels, moved by one."""
    made = _features(tokenizer, Example("w5 w6", "w7 w8", "w9"), "window", STRATEGIES["standard"](8).inputs)
    batch = Collator(0, 2, 16)([made[0]])
    assert tokenizer.decode(batch["input_ids"][0]) == "<s> w9 w5 w6 </s>"
    assert "prefix_ids" not in batch
    assert torch.equal(batch["labels"][0, :-1], batch["decoder_input_ids"][0, 1:])


def test_a_question_in_the_decoder_is_given_and_not_learned(tokenizer):
    made = _features(tokenizer, Example("w5 w6", "w7", "w9 w10"), "decoder", STRATEGIES["standard"](8).inputs)
    batch = Collator(0, 2, 16)([made[0]])
    asked = tokenizer("w9 w10", add_special_tokens=False)["input_ids"]
    assert batch["decoder_input_ids"][0, :3].tolist() == [2, *asked]
    assert batch["labels"][0, :2].tolist() == [IGNORED] * 2 and batch["labels"][0, 2] != IGNORED


def test_a_long_answer_keeps_its_end(tokenizer):
    made = _features(
        tokenizer,
        Example("w5", " ".join(["w1"] * 9)),
        "window",
        STRATEGIES["standard"](8).inputs,
        LengthLimits(None, 4),
    )
    assert len(made[0]["answer_ids"]) == 4 and int(made[0]["answer_ids"][-1]) == tokenizer.eos_token_id


def test_every_recipe_is_complete():
    found = recipes()
    assert {name.split("/")[0] for name in found} >= {"govreport-bart-base", "booksum-primera", "qmsum-bart-base"}
    for name, told in found.items():
        assert TrainingSettings.of(told, name).method in STRATEGIES
    assert read_recipe("booksum-bart-base/alternating")["method"] == "alternating"
    with pytest.raises(UnlimiformerError, match="no recipe 'magic'"):
        read_recipe("magic")


def test_a_recipe_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model: m\ndata: d.jsonl\nmethod: sled\n")
    assert read_recipe(str(path)) == {"model": "m", "data": "d.jsonl", "method": "sled"}
    path.write_text("model: m\ncolour: red\n")
    with pytest.raises(UnlimiformerError, match="has colour; expected only: model"):
        TrainingSettings.of(read_recipe(str(path)), "mine")
    path.write_text("- a\n")
    with pytest.raises(UnlimiformerError, match="has no names and values"):
        read_recipe(str(path))


def test_questions_of_one_document_stand_together(tokenizer):
    """In every epoch, in an order by chance; all come, once; and their batch reads the document once."""
    asked = [Example(f"w{d} w1 w2 w3", "w4", f"w{q}") for q in range(3) for d in range(5)]
    features = Seq2SeqDataset(asked, tokenizer, QuestionFormat("decoder"), LengthLimits(None, None), 16)
    order = GroupedSampler(features, 3, seed=1)
    epochs = []
    for epoch in (0, 1, 1):
        order.set_epoch(epoch)
        epochs.append(list(order))
        documents = [asked[place].document for place in epochs[-1]]
        assert sorted(epochs[-1]) == list(range(15)) and len(order) == 15
        assert all(len(set(documents[i : i + 3])) == 1 for i in range(0, 15, 3))
    assert epochs[0] != epochs[1] == epochs[2]
    uneven = [Example(f"w{d} w1", "w4", f"w{q}") for d, count in enumerate((3, 5, 2, 8, 1, 3, 2)) for q in range(count)]
    packed = Seq2SeqDataset(uneven, tokenizer, QuestionFormat("decoder"), LengthLimits(None, None), 16)
    places = list(GroupedSampler(packed, 4, seed=0))
    assert sorted(places) == list(range(24))
    batches = [{uneven[place].document for place in places[i : i + 4]} for i in range(0, 24, 4)]
    assert sum(len(documents) for documents in batches) <= 11, "in any order by chance they are in 20 or so"
    batch = Collator(0, 0, 16)([features[place] for place in epochs[0][:3]])
    assert "prefix_ids" in batch, "such a batch is read into one memory"
    assert "prefix_ids" not in Collator(0, 0, 16)([features[0], features[1]])
    alone = Seq2SeqDataset(asked, tokenizer, QuestionFormat("window"), LengthLimits(None, None), 16)
    assert alone.sharing == [[place] for place in range(15)], "before windows each question is an input of its own"
