"""The figures' numbers against slow, obvious ones; and their files."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from conftest import make_book, make_tokenizer, save
from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.engines.seq2seq.sample_queries import sample_queries
from unlimiformer.errors import UnlimiformerError
from unlimiformer.evaluation import EvaluationSettings
from unlimiformer.figures import hits, mass, quality, timing
from unlimiformer.qa import QuestionFormat


@pytest.fixture
def wrapped(tokenizer):
    torch.manual_seed(0)
    with Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=4) as u:
        yield u


def _rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_mass_is_that_of_a_plain_softmax(wrapped, book, tmp_path):
    memory = wrapped.index(book)
    rows, (data, picture) = mass.run(wrapped, memory, (1, 4, 50, 1000), (50, 120, 9999), tmp_path)
    assert picture.stat().st_size > 5000 and len(_rows(data)) == len(rows) == 3 * 2 * 4 * 4
    views = wrapped.hooks.attentions
    heard = sample_queries(wrapped.model, wrapped.hooks, memory)
    states = memory.store.states.float()
    for row in rows:
        calls = [call.reshape(-1, views[0].heads, call.shape[-1]) for call in heard[row["layer"] :: len(views)]]
        queries = torch.cat(calls)
        places = torch.linspace(0, queries.shape[0] - 1, min(48, queries.shape[0])).long()
        shares = (queries[places, row["head"]] @ states[: row["tokens"]].T).softmax(-1).sort(descending=True).values
        assert row["mass"] == pytest.approx(float(shares[:, : row["k"]].sum(-1).mean()), abs=1e-5)
    assert {row["tokens"] for row in rows} == {50, 120, len(memory)}
    told = mass.summary(rows)
    assert all(row["least"] <= row["mean"] for row in told)
    assert next(row for row in told if (row["tokens"], row["k"]) == (50, 50))["mean"] == pytest.approx(1)


def test_hits_are_those_of_every_head_at_every_step(wrapped, book, tmp_path):
    figures, (data, _) = hits.run(wrapped, QuestionFormat(), book, "w1", 6, tmp_path)
    rows = _rows(data)
    assert sum(float(row["share_of_hits"]) for row in rows) == pytest.approx(1, abs=1e-4)
    looked = wrapped.generate(book, prefix="w1\n", provenance=True, max_new_tokens=6, do_sample=False).provenance
    steps = figures["new_tokens"]
    assert int(looked.hits.sum()) == steps * 2 * 4 * 4, "layers, heads, k"
    assert figures["retrieved_once_or_more"] == pytest.approx(float((looked.hits > 0).float().mean()))
    places = torch.repeat_interleave(torch.arange(len(looked.hits)), looked.hits)
    assert figures["median_position"] == pytest.approx(float(places.median()) / len(looked.hits), abs=0.02)


def test_hits_of_a_text_that_fits_the_window_are_all_of_it(wrapped, tmp_path):
    figures, _ = hits.run(wrapped, QuestionFormat(), "w1 w2 w3 w4 w5", "w1", 3, tmp_path)
    assert figures["retrieved_once_or_more"] == 1


def test_time_is_measured_for_every_method_and_length(wrapped, book, tmp_path):
    rows, (data, picture) = timing.run(wrapped, QuestionFormat(), book, (40, 90), 2, 1, tmp_path, lambda line: None)
    assert [(row["tokens"], row["method"]) for row in rows] == [
        (length, method) for length in (40, 90) for method in ("truncate", "unlimiformer", "sled")
    ]
    assert all(row["seconds"] > 0 for row in rows) and picture.exists() and len(_rows(data)) == 6


def test_quality_runs_every_limit_and_goes_on(tmp_path):
    model = save(tmp_path / "model", make("bart"), make_tokenizer())
    lines = [{"document": make_book(120), "question": f"w{n}", "answer": "w5"} for n in range(3)]
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = EvaluationSettings(model=model, data=str(data), new_tokens=4, config={"top_k": 4})
    out, heard = tmp_path / "out", []
    rows, files = quality.run(settings, (20, None), "f1", out, heard.append, lambda done, of: None)
    assert [(row["method"], row["input_limit"]) for row in rows] == [
        ("truncate", "all"),
        ("unlimiformer", 20),
        ("unlimiformer", "all"),
    ]
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows) and all(file.exists() for file in files)
    again, _ = quality.run(settings, (20, None), "f1", out, heard.append, lambda done, of: None)
    assert again == rows
    with pytest.raises(UnlimiformerError, match="metric is 'bleu'; the runs have: rouge1"):
        quality.run(settings, (20,), "bleu", out, heard.append, lambda done, of: None)
