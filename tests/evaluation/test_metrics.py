"""Metrics against their reference packages and hand-computed cases; bootstrap intervals; the result file."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import transformers as hf

from unlimiformer.errors import InputError
from unlimiformer.evaluation import Result
from unlimiformer.evaluation.bootstrap import Interval, differences, intervals, means
from unlimiformer.evaluation.metrics import F1, BertScore, EntityRecall, ExactMatch, Rouge
from unlimiformer.evaluation.metrics.overlap import normalize

ANSWERS = ["the cat sat on the mats", "a dog", ""]
REFERENCES = [["the cat sat on the mat", "cats sit"], ["one dog barked loudly"], ["nothing at all"]]


def test_rouge_equals_the_package_with_the_best_reference():
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    columns = Rouge().scores(ANSWERS, REFERENCES)
    for kind, scores in columns.items():
        expected = [
            100 * max(scorer.score(reference, answer)[kind].fmeasure for reference in texts)
            for answer, texts in zip(ANSWERS, REFERENCES, strict=True)
        ]
        assert scores == pytest.approx(expected)
    assert columns["rouge1"][0] == pytest.approx(100), "mats and mat have one stem"


def test_rouge_is_the_geometric_mean_of_the_means():
    columns = {"rouge1": np.array([40.0, 60.0]), "rouge2": np.array([10.0, 30.0]), "rougeL": np.array([20.0, 60.0])}
    assert means(columns)["rouge"] == pytest.approx((50 * 20 * 40) ** (1 / 3))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The  Cat!", "cat"), ("an A-team", "ateam"), ("theatre, a play", "theatre play"), ("...", "")],
)
def test_normalization_is_that_of_squad(text, expected):
    assert normalize(text) == expected


def test_f1_and_exact_match():
    answers = ["the red house", "in 1602", "", "yes"]
    references = [["a house of red bricks", "blue"], ["1602."], [""], ["no"]]
    # by hand: red, house of 2 and 4 words: 2*2/6; 1602 of 2 and 1: 2/3; nothing in common; nothing in common
    assert F1().scores(answers, references)["f1"] == pytest.approx([200 / 3, 200 / 3, 0, 0])
    assert ExactMatch().scores(answers, references)["exact_match"] == [0, 0, 100, 0]
    assert ExactMatch().scores(["The 1602!"], [["no", "1602"]])["exact_match"] == [100]


def test_entity_recall():
    metric = EntityRecall()
    reference = "Barack Obama was born in Hawaii. Barack Obama met Angela Merkel in Berlin in 2013."
    assert metric.find_entities(reference) == {"barack obama", "hawaii", "angela merkel", "berlin", "2013"}
    answers = ["Barack Obama lives in Berlin.", "Nobody was there.", reference, "He slept."]
    references = [[reference], [reference], ["He slept.", reference], ["He slept."]]
    scores = metric.scores(answers, references)["entities"]
    assert scores[:3] == pytest.approx([40, 0, 100]) and math.isnan(scores[3]), "no entity, no score"
    with pytest.raises(InputError, match="spaCy cannot load 'xx_none'"):
        EntityRecall("xx_none")


def _encoder(folder, limit=None):
    """Save a small BERT with a vocabulary of words; its tokenizer has the given limit, or none."""
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat", "dog", "ran"]
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    hf.BertModel(hf.BertConfig(vocab_size=len(words), max_position_embeddings=16, **sizes)).save_pretrained(folder)
    options = {} if limit is None else {"model_max_length": limit}
    hf.BertTokenizer(str(folder / "vocab.txt"), **options).save_pretrained(folder)
    return str(folder)


def test_bertscore_equals_the_package_and_a_reference(tmp_path):
    import bert_score

    encoder = _encoder(tmp_path / "bert", 16)
    answers, references = ["the cat sat", "a dog ran"], [["a cat sat on the mat", "the dog"], ["the dog ran"]]
    scores = BertScore(encoder, 2).scores(answers, references)["bertscore"]
    _, _, expected = bert_score.score(answers, references, model_type=encoder, num_layers=2)
    assert scores == pytest.approx([100 * float(score) for score in expected], rel=1e-5)
    expected = [
        max(_reference_bertscore(encoder, answer, reference) for reference in texts)
        for answer, texts in zip(answers, references, strict=True)
    ]
    assert scores == pytest.approx(expected, rel=1e-4)
    long = " ".join(["cat"] * 50)
    unlimited = _encoder(tmp_path / "other")
    assert BertScore(unlimited).scores([long], [[long]])["bertscore"] == pytest.approx([100], abs=0.01)
    with pytest.raises(InputError, match="BERTScore cannot use 'nowhere/nothing'"):
        BertScore("nowhere/nothing")


def _reference_bertscore(folder, answer, reference):
    """Greedy matching of words by the cosine of their states, without the special tokens at the ends."""
    model, tokenizer = hf.AutoModel.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)

    def states(text):
        with torch.no_grad():
            all_states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[2][0]
        return torch.nn.functional.normalize(all_states, dim=-1)

    similarity = states(answer) @ states(reference).T
    precision, recall = similarity[1:-1].max(1).values.mean(), similarity[:, 1:-1].max(0).values.mean()
    return float(100 * 2 * precision * recall / (precision + recall))


def test_intervals_cover_the_mean():
    rng = np.random.default_rng(3)
    inside = 0
    for seed in range(100):
        interval = intervals({"f1": rng.normal(50, 20, size=60)}, draws=500, seed=seed)["f1"]
        inside += interval.low <= 50 <= interval.high
    assert 88 <= inside <= 99, "about 95 of 100"


def test_questions_of_one_document_are_resampled_together():
    """Ten documents, each with one score for its eight questions, are ten units, not eighty."""
    rng = np.random.default_rng(0)
    scores = np.repeat(rng.normal(50, 20, size=10), 8)
    documents = np.repeat(np.arange(10), 8).tolist()
    by_question = intervals({"f1": scores})["f1"]
    by_document = intervals({"f1": scores}, documents)["f1"]
    expected = intervals({"f1": scores[::8]})["f1"]
    assert by_document.high - by_document.low == pytest.approx(expected.high - expected.low, rel=0.01)
    assert by_document.high - by_document.low > 2 * (by_question.high - by_question.low)
    uneven = intervals({"f1": np.array([0.0, 0.0, 90.0])}, [0, 0, 1])["f1"]
    assert uneven.value == pytest.approx(30) and (uneven.low, uneven.high) == (0, 90)


def test_missing_scores_are_ignored():
    interval = intervals({"entities": np.array([10.0, math.nan, 30.0])}, draws=200)["entities"]
    assert interval.value == 20 and 10 <= interval.low <= interval.high <= 30
    assert intervals({"entities": np.array([math.nan])}, draws=10) == {}


def test_paired_differences_are_more_sensitive_than_intervals():
    rng = np.random.default_rng(1)
    base = rng.normal(50, 20, size=50)
    better = base + rng.normal(1.0, 1.0, size=50)
    first, second = intervals({"f1": base})["f1"], intervals({"f1": better})["f1"]
    assert second.low < first.value < second.high, "the intervals overlap"
    gain = differences({"f1": better}, {"f1": base})["f1"]
    assert gain.p < 0.01 and gain.low > 0
    same = differences({"f1": base}, {"f1": base})["f1"]
    assert same.value == 0 and same.p == 1
    worse = differences({"f1": base}, {"f1": better})["f1"]
    assert worse.value == pytest.approx(-gain.value) and worse.p == pytest.approx(gain.p, abs=0.01)


def _result() -> Result:
    return Result(
        task="jsonl",
        task_version=1,
        metrics={"f1": Interval(50.0, 40.0, 60.0)},
        scores={"f1": [50.0, 50.0], "entities": [10.0, math.nan]},
        keys=["a", "b"],
        documents=[0, 1],
        settings={},
        by_seed={"0": {"f1": 50.0}},
        left_out=[],
        seconds=1.5,
        peak_bytes=7,
        versions={"python": "3"},
    )


def test_result_is_read_as_it_was_written(tmp_path):
    result = _result()
    (tmp_path / "result.json").write_text(result.to_json())
    read = Result.read(tmp_path)
    assert math.isnan(read.scores["entities"][1]) and read.to_json() == result.to_json()
    assert read.metrics == result.metrics


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": 1}, "the key colour is unknown or missing"),
        ({"metrics": 5}, "metrics or scores are malformed"),
        ({"metrics": {"f1": {"value": 1}}}, "metrics or scores are malformed"),
        ({"scores": {"f1": ["a", "b"]}}, "metrics or scores are malformed"),
        ({"keys": ["a"]}, "keys, documents and scores differ in length"),
    ],
)
def test_malformed_result_names_file_and_key(tmp_path, changes, message):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**json.loads(_result().to_json()), **changes}))
    with pytest.raises(InputError, match=f"result.json is no result: {message}"):
        Result.read(path)
