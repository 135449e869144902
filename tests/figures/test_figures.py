"""Figures: their numbers against a slow and simple computation, and the files they write."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
import torch
from conftest import make_book, make_tokenizer, save
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.errors import InputError, StorageError
from unlimiformer.evaluation import EvaluationSettings
from unlimiformer.figures import data as data_figure
from unlimiformer.figures import hits, mass, quality, timing
from unlimiformer.qa import QuestionFormat
from unlimiformer.tasks import Example


@pytest.fixture
def wrapped(tokenizer):
    torch.manual_seed(0)
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=4) as u:
        yield u


def _read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_mass_equals_a_plain_softmax(wrapped, book, tmp_path):
    memory = wrapped.index(book)
    rows, (data, picture) = mass.run(wrapped, memory, (1, 4, 50, 1000), (50, 120, 9999), tmp_path)
    assert picture.stat().st_size > 5000 and len(_read_csv(data)) == len(rows) == 3 * 2 * 4 * 4
    views = wrapped.engine.cross_attentions
    sampled = wrapped.engine.sample_queries(memory)
    states = memory.store.states.float()
    for row in rows:
        calls = [call.reshape(-1, views[0].heads, call.shape[-1]) for call in sampled[row["layer"] :: len(views)]]
        queries = torch.cat(calls)
        indices = torch.linspace(0, queries.shape[0] - 1, min(48, queries.shape[0])).long()
        shares = (queries[indices, row["head"]] @ states[: row["tokens"]].T).softmax(-1).sort(descending=True).values
        assert row["mass"] == pytest.approx(float(shares[:, : row["k"]].sum(-1).mean()), abs=1e-5)
    assert {row["tokens"] for row in rows} == {50, 120, len(memory)}
    summaries = mass.summary(rows)
    assert all(row["least"] <= row["mean"] for row in summaries)
    assert next(row for row in summaries if (row["tokens"], row["k"]) == (50, 50))["mean"] == pytest.approx(1)


def test_hits_count_every_head_at_every_step(wrapped, book, tmp_path):
    statistics, (data, _) = hits.run(wrapped, QuestionFormat(), [(book, "w1")], 6, tmp_path)
    rows = _read_csv(data)
    assert sum(float(row["share_of_hits"]) for row in rows) == pytest.approx(1, abs=1e-4)
    output = wrapped.generate(book, prefix="w1\n", provenance=True, max_new_tokens=6, do_sample=False)
    expected = output.provenance.hits
    assert int(expected.sum()) % (2 * 4 * 4) == 0, "layers, heads, k"
    assert statistics["retrieved_once_or_more"] == pytest.approx(float((expected > 0).float().mean()))
    positions = torch.repeat_interleave(torch.arange(len(expected)), expected)
    assert statistics["median_position"] == pytest.approx(float(positions.median()) / len(expected), abs=0.02)


def test_hits_cover_all_of_a_text_within_the_window(wrapped, tmp_path):
    statistics, (data, _) = hits.run(wrapped, QuestionFormat(), [("w1 w2 w3 w4 w5", "w1")], 3, tmp_path)
    assert statistics["retrieved_once_or_more"] == 1
    assert all(float(row["share_of_hits"]) == pytest.approx(1 / 50, abs=1e-4) for row in _read_csv(data)), (
        "all tokens, evenly"
    )


def test_hits_are_averaged_over_documents(wrapped, book, tmp_path):
    short = ("w1 w2 w3 w4 w5", "w1")
    one, _ = hits.run(wrapped, QuestionFormat(), [(book, "w1")], 3, tmp_path / "one")
    both, (data, _) = hits.run(wrapped, QuestionFormat(), [(book, "w1"), short], 3, tmp_path / "both")
    for name in ("retrieved_once_or_more", "median_position"):
        alone, _ = hits.run(wrapped, QuestionFormat(), [short], 3, tmp_path / "short")
        assert both[name] == pytest.approx((one[name] + alone[name]) / 2)
    assert sum(float(row["share_of_hits"]) for row in _read_csv(data)) == pytest.approx(1, abs=1e-4)


def test_statistics_of_data(wrapped, tmp_path):
    examples = [
        Example("w1 w2 w3", "w4", "w5", "a"),
        Example("w1 w2 w3", "w4 w6", "w5", "a"),
        Example("w7 " * 40, None),
    ]
    statistics, (table, picture) = data_figure.run(examples, wrapped.tokenizer, tmp_path)
    assert statistics == {
        "examples": 2,
        "documents": 2,
        "mean_input": 22,
        "mean_output": 1.5,
        "shortest_input": 4,
        "longest_input": 40,
    }
    assert [(row["from"], row["examples"]) for row in _read_csv(table)] == [
        ("4", "1"),
        ("8", "0"),
        ("16", "0"),
        ("32", "1"),
    ]
    assert picture.stat().st_size > 1000


def test_time_is_measured_for_every_method_and_length(wrapped, book, tmp_path):
    rows, (data, picture) = timing.run(wrapped, QuestionFormat(), book, (40, 90), 2, 1, tmp_path, lambda line: None)
    assert [(row["tokens"], row["method"]) for row in rows] == [
        (length, method) for length in (40, 90) for method in ("truncate", "unlimiformer", "sled")
    ]
    assert all(row["seconds"] > 0 for row in rows) and picture.exists() and len(_read_csv(data)) == 6


def test_the_plain_decoder_only_model_is_timed_over_its_whole_context(tokenizer, book, tmp_path):
    with Unlimiformer(tiny_decoder("llama"), tokenizer, window=32, top_k=8, block=4) as u:
        rows, _ = timing.run(u, QuestionFormat(), book, (90,), 2, 1, tmp_path, lambda line: None)
    assert [row["method"] for row in rows] == ["full", "unlimiformer"]


def test_quality_evaluates_every_limit_and_continues(tmp_path):
    model = save(tmp_path / "model", make("bart"), make_tokenizer())
    lines = [{"document": make_book(120), "question": f"w{n}", "answer": "w5"} for n in range(3)]
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = EvaluationSettings(model=model, data=str(data), generation={"max_new_tokens": 4}, config={"top_k": 4})
    out, logged = tmp_path / "out", []
    rows, files = quality.run(settings, (20, None), "f1", out, logged.append, lambda done, total: None)
    assert [(row["method"], row["input_limit"]) for row in rows] == [
        ("truncate", "all"),
        ("unlimiformer", 20),
        ("unlimiformer", "all"),
    ]
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows) and all(file.exists() for file in files)
    again, _ = quality.run(settings, (20, None), "f1", out, logged.append, lambda done, total: None)
    assert again == rows
    with pytest.raises(InputError, match="metric is 'bleu'; the runs have: rouge1"):
        quality.run(settings, (20,), "bleu", out, logged.append, lambda done, total: None)
    with pytest.raises(InputError, match="method is 'truncate'"):
        quality.run(replace(settings, method="truncate"), (20,), "f1", out, logged.append, lambda done, total: None)


def test_unwritable_folder_is_reported(wrapped, book, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="in the way"):
        hits.run(wrapped, QuestionFormat(), [(book, "w1")], 2, tmp_path / "file")
