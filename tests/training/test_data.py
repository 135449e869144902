"""Examples from files, hubs and programs, and what becomes of them."""

from __future__ import annotations

import json
import random

import pytest
import torch

from unlimiformer.asking import Asking
from unlimiformer.benchmarks.needle import WORDINGS
from unlimiformer.errors import UnlimiformerError
from unlimiformer.training import Example, Features, Limits, TrainingSettings, data, examples, facts, recipes
from unlimiformer.training.condensing import condensed
from unlimiformer.training.data import Size
from unlimiformer.training.facts import WORDS, examples_in
from unlimiformer.training.facts import facts as some_facts
from unlimiformer.training.features import IGNORED, Collator, Together
from unlimiformer.training.settings import read_recipe
from unlimiformer.training.strategies import STRATEGIES


def test_both_shapes_of_lines(tmp_path):
    path = tmp_path / "d.jsonl"
    lines = [
        {"document": "one", "answer": "a"},
        {"document": "two", "questions": [{"question": "q", "answer": "b"}, {"question": "r", "answer": "c"}]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    expected = [Example("one", "a"), Example("two", "b", "q"), Example("two", "c", "r")]
    assert examples(str(path)) == expected
    assert examples(str(path), limit=2) == expected[:2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON"),
        ("[1]", 'line 2: no text called "document"'),
        ('{"document": 5, "answer": "x"}', 'line 2: no text called "document"'),
        ('{"document": "x"}', 'line 2: an "answer" or "question" is missing'),
        ('{"document": "x", "questions": ["q"]}', 'line 2: an "answer" or "question" is missing'),
        ('{"document": "x", "answer": "y", "question": 3}', 'line 2: an "answer" or "question" is missing'),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, message):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": "one", "answer": "a"}) + "\n" + line + "\n")
    with pytest.raises(UnlimiformerError, match=message):
        examples(str(path))


def test_no_file_and_no_known_name(tmp_path):
    with pytest.raises(UnlimiformerError, match="expected a JSONL file, condensed:FILE, or one of: govreport"):
        examples("nowhere.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UnlimiformerError, match="has no examples"):
        examples(str(tmp_path / "empty.jsonl"))


def test_rows_of_a_hub(monkeypatch):
    rows = {
        "govreport": [{"input": "a report\n\nof two parts", "output": "short"}],
        "qasper": [{"input": "Why?\n\nA paper\n\nof two parts", "output": "because"}],
        "booksum": [{"book": "a book", "summary": "short"}],
    }
    monkeypatch.setattr(data, "_hub_rows", lambda name, split: rows[name])
    assert examples("govreport") == [Example("a report\n\nof two parts", "short")]
    assert examples("qasper") == [Example("A paper\n\nof two parts", "because", "Why?")]
    assert examples("booksum") == [Example("a book", "short")]


def test_a_hub_that_cannot_be_reached_is_named():
    pytest.importorskip("datasets")
    with pytest.raises(UnlimiformerError, match="qmsum could not be loaded from 'tau/scrolls'"):
        examples("qmsum")


def _features(tokenizer, example, place, inputs, limits=None, window=16):
    limits = limits or Limits(None, None)
    return Features([example], tokenizer, Asking(place, "{question}"), limits, window, inputs)


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
        tokenizer, Example("w5", " ".join(["w1"] * 9)), "window", STRATEGIES["standard"](8).inputs, Limits(None, 4)
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


def test_facts_are_in_their_text_among_rivals():
    """Facts are lines of the passage; no other line answers their question; the same seed writes the same."""
    texts = ["\n".join(f"line {i} of a play with some words" for i in range(500))]
    size = Size((60, 200), 9, 4)
    made = examples_in(texts, 50, size, seed=3)
    assert made == examples_in(texts, 50, size, seed=3) != examples_in(texts, 50, size, seed=4)
    rng = random.Random(0)
    for _ in range(200):
        told = some_facts(rng, 9)
        asked = [question for fact in told for question in fact.questions]
        assert len(told) == 10 and len(set(asked)) == len(asked)
        assert all(fact.answer in fact.sentence and fact.question in fact.questions for fact in told)
        assert all("{" not in fact.sentence + fact.question for fact in told)
    for example in made:
        assert sum(line.startswith("line ") for line in example.document.split("\n")) >= 6
        assert example.answer in example.document
    shared = [example.document for example in made]
    assert all(shared.count(document) == 4 for document in shared[:48])


def test_condensed_documents_have_what_their_answers_are_about():
    lines = [f"someone speaks of topic{i // 40} and word{i} at some length, as people do" for i in range(800)]
    lines[300] = "the secret ingredient was saffron, said the cook"
    document = "\n".join(lines)
    asked = [Example(document, "saffron, the cook said", "What was the secret ingredient?")]
    asked += [Example(document, f"about topic{i}", f"What of topic{i}?") for i in range(7)]
    short = condensed([*asked, Example("one line", "a")])
    assert len(short) == 5 and short[-1] == Example("one line", "a")
    assert [(each.question, each.answer) for each in short[:4]] == [(each.question, each.answer) for each in asked[:4]]
    assert len({each.document for each in short[:4]}) == 1
    words = short[0].document.split()
    assert lines[300] in short[0].document and "topic1" in words
    assert len(words) < 4 * 2 * 100 < len(document.split())
    places = [lines.index(line) for line in short[0].document.split("\n")]
    assert places == sorted(places)


def test_questions_of_one_document_stand_together(tokenizer):
    """In every epoch, in an order by chance; all come, once; and their batch reads the document once."""
    asked = [Example(f"w{d} w1 w2 w3", "w4", f"w{q}") for q in range(3) for d in range(5)]
    features = Features(asked, tokenizer, Asking("decoder"), Limits(None, None), 16)
    order = Together(features, 3, seed=1)
    epochs = []
    for epoch in (0, 1, 1):
        order.set_epoch(epoch)
        epochs.append(list(order))
        documents = [asked[place].document for place in epochs[-1]]
        assert sorted(epochs[-1]) == list(range(15)) and len(order) == 15
        assert all(len(set(documents[i : i + 3])) == 1 for i in range(0, 15, 3))
    assert epochs[0] != epochs[1] == epochs[2]
    uneven = [Example(f"w{d} w1", "w4", f"w{q}") for d, count in enumerate((3, 5, 2, 8, 1, 3, 2)) for q in range(count)]
    packed = Features(uneven, tokenizer, Asking("decoder"), Limits(None, None), 16)
    places = list(Together(packed, 4, seed=0))
    assert sorted(places) == list(range(24))
    batches = [{uneven[place].document for place in places[i : i + 4]} for i in range(0, 24, 4)]
    assert sum(len(documents) for documents in batches) <= 11, "in any order by chance they are in 20 or so"
    batch = Collator(0, 0, 16)([features[place] for place in epochs[0][:3]])
    assert "prefix_ids" in batch, "such a batch is read into one memory"
    assert "prefix_ids" not in Collator(0, 0, 16)([features[0], features[1]])
    alone = Features(asked, tokenizer, Asking("window"), Limits(None, None), 16)
    assert alone.sharing == [[place] for place in range(15)], "before windows each question is an input of its own"


def test_several_sources_and_written_facts(tmp_path, monkeypatch):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"document": "one", "answer": "a"}) + "\n")
    texts = {}

    def text(name):
        texts[name] = tmp_path / "play.txt"
        texts[name].write_text("a line of a play\n" * 3000)
        return texts[name]

    monkeypatch.setattr(facts, "get_text", text)
    made = examples(f"{path},facts:3,long-facts:2")
    assert len(made) == 6 and made[0] == Example("one", "a")
    lengths = [len(example.document.split()) for example in made[1:]]
    assert max(lengths[:3]) < 400 and min(lengths[3:]) > 200
    others = [examples("facts:3", "validation"), examples("facts:3:1"), examples("facts:3:1", "validation")]
    assert made[1:4] == examples("facts:3:0") and all(made[1:4] != other for other in others)
    assert not {"shakespeare/hamlet", "shakespeare/lear"} & set(texts) and len(texts) > 20
    with pytest.raises(UnlimiformerError, match="facts:2000"):
        examples("facts:many")


def test_what_is_reported_was_not_learned():
    """No wording of `bench needle` can be written by the program."""
    learned = {word for name in ("roles", "codes", "titles", "vehicles") for word in WORDS[name]}
    for kinds in WORDINGS.values():
        for forms in kinds.values():
            for sentence, _ in forms:
                assert not any(f" {word} " in f" {sentence.lower()} " for word in map(str.lower, learned)), sentence
