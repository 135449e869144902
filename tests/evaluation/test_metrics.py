"""Metrics against their reference libraries, and against cases made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers as hf

from unlimiformer.errors import UnlimiformerError
from unlimiformer.evaluation.bootstrap import differences, intervals, means
from unlimiformer.evaluation.metrics import F1, BertScore, EntityRecall, ExactMatch, Rouge
from unlimiformer.evaluation.metrics.overlap import normalised

ANSWERS = ["the cat sat on the mats", "a dog", ""]
REFERENCES = [["the cat sat on the mat", "cats sit"], ["one dog barked loudly"], ["nothing at all"]]


def test_rouge_is_that_of_the_package_and_the_best_reference_counts():
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    found = Rouge().scores(ANSWERS, REFERENCES)
    for kind, scores in found.items():
        expected = [
            100 * max(scorer.score(reference, answer)[kind].fmeasure for reference in right)
            for answer, right in zip(ANSWERS, REFERENCES, strict=True)
        ]
        assert scores == pytest.approx(expected)
    assert found["rouge1"][0] == pytest.approx(100), "mats and mat have one stem"


def test_the_geometric_mean_is_that_of_the_means():
    columns = {"rouge1": np.array([40.0, 60.0]), "rouge2": np.array([10.0, 30.0]), "rougeL": np.array([20.0, 60.0])}
    assert means(columns)["rouge"] == pytest.approx((50 * 20 * 40) ** (1 / 3))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The  Cat!", "cat"), ("an A-team", "ateam"), ("theatre, a play", "theatre play"), ("...", "")],
)
def test_answers_are_normalised_as_squad_has_it(text, expected):
    assert normalised(text) == expected


def test_f1_and_exact_match_by_hand():
    answers = ["the red house", "in 1602", "", "yes"]
    references = [["a house of red bricks", "blue"], ["1602."], [""], ["no"]]
    # red, house of 2 and 4 words: 2*2/6; 1602 of 2 and 1: 2/3; nothing in common; nothing in common
    assert F1().scores(answers, references)["f1"] == pytest.approx([200 / 3, 200 / 3, 0, 0])
    assert ExactMatch().scores(answers, references)["exact_match"] == [0, 0, 100, 0]
    assert ExactMatch().scores(["The 1602!"], [["no", "1602"]])["exact_match"] == [100]


def test_entity_recall_by_hand():
    metric = EntityRecall()
    reference = "Barack Obama was born in Hawaii. Barack Obama met Angela Merkel in Berlin in 2013."
    wanted = metric.mentioned(reference)
    assert {"barack obama", "hawaii", "angela merkel", "berlin", "2013"} == wanted
    answers = ["Barack Obama lives in Berlin.", "Nobody was there.", reference, "He slept."]
    references = [[reference], [reference], ["He slept.", reference], ["He slept."]]
    scores = metric.scores(answers, references)["entities"]
    assert scores[:3] == pytest.approx([40, 0, 100]) and math.isnan(scores[3]), "no entity, no score"
    with pytest.raises(UnlimiformerError, match="spaCy cannot load 'xx_none'"):
        EntityRecall("xx_none")


def _encoder(folder, limit=None):
    """A small BERT with a vocabulary of words, whose tokenizer knows the limit or does not."""
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat", "dog", "ran"]
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    hf.BertModel(hf.BertConfig(vocab_size=len(words), max_position_embeddings=16, **sizes)).save_pretrained(folder)
    known = {} if limit is None else {"model_max_length": limit}
    hf.BertTokenizer(str(folder / "vocab.txt"), **known).save_pretrained(folder)
    return str(folder)


def test_bertscore_is_that_of_the_package_and_of_a_loop(tmp_path):
    import bert_score

    encoder = _encoder(tmp_path / "bert", 16)
    answers, references = ["the cat sat", "a dog ran"], [["a cat sat on the mat", "the dog"], ["the dog ran"]]
    found = BertScore(encoder, 2).scores(answers, references)["bertscore"]
    _, _, expected = bert_score.score(answers, references, model_type=encoder, num_layers=2)
    assert found == pytest.approx([100 * float(each) for each in expected], rel=1e-5)
    expected = [
        max(_by_hand(encoder, answer, one) for one in right) for answer, right in zip(answers, references, strict=True)
    ]
    assert found == pytest.approx(expected, rel=1e-4)
    long = " ".join(["cat"] * 50)
    unlimited = _encoder(tmp_path / "other")
    assert BertScore(unlimited).scores([long], [[long]])["bertscore"] == pytest.approx([100], abs=0.01)
    with pytest.raises(UnlimiformerError, match="BERTScore cannot use 'nowhere/nothing'"):
        BertScore("nowhere/nothing")


def _by_hand(folder, answer, reference):
    """Greedy matching of words by the cosine of their states, without the frame of special tokens."""
    model, tokenizer = hf.AutoModel.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)

    def states(text):
        with torch.no_grad():
            all_states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[2][0]
        return torch.nn.functional.normalize(all_states, dim=-1)

    said, right = states(answer), states(reference)
    alike = said @ right.T
    precision, recall = alike[1:-1].max(1).values.mean(), alike[:, 1:-1].max(0).values.mean()
    return float(100 * 2 * precision * recall / (precision + recall))


def test_bounds_hold_what_they_say():
    rng = np.random.default_rng(3)
    inside = 0
    for seed in range(100):
        found = intervals({"f1": rng.normal(50, 20, size=60)}, draws=500, seed=seed)["f1"]
        inside += found.low <= 50 <= found.high
    assert 88 <= inside <= 99, "95 of 100, more or less"


def test_questions_of_one_document_are_drawn_together():
    """Ten documents whose eight questions have one score each are ten draws, not eighty."""
    rng = np.random.default_rng(0)
    scores = np.repeat(rng.normal(50, 20, size=10), 8)
    documents = np.repeat(np.arange(10), 8).tolist()
    alone = intervals({"f1": scores})["f1"]
    together = intervals({"f1": scores}, documents)["f1"]
    ten = intervals({"f1": scores[::8]})["f1"]
    assert together.high - together.low == pytest.approx(ten.high - ten.low, rel=0.01)
    assert together.high - together.low > 2 * (alone.high - alone.low)
    uneven = intervals({"f1": np.array([0.0, 0.0, 90.0])}, [0, 0, 1])["f1"]
    assert uneven.value == pytest.approx(30) and (uneven.low, uneven.high) == (0, 90)


def test_a_missing_score_counts_for_nothing():
    found = intervals({"entities": np.array([10.0, math.nan, 30.0])}, draws=200)["entities"]
    assert found.value == 20 and 10 <= found.low <= found.high <= 30
    assert intervals({"entities": np.array([math.nan])}, draws=10) == {}


def test_paired_differences_see_what_bounds_cannot():
    rng = np.random.default_rng(1)
    base = rng.normal(50, 20, size=50)
    better = base + rng.normal(1.0, 1.0, size=50)
    first, second = intervals({"f1": base})["f1"], intervals({"f1": better})["f1"]
    assert second.low < first.value < second.high, "the runs alone cannot be told apart"
    found = differences({"f1": better}, {"f1": base})["f1"]
    assert found.p < 0.01 and found.low > 0
    same = differences({"f1": base}, {"f1": base})["f1"]
    assert same.value == 0 and same.p == 1
    worse = differences({"f1": base}, {"f1": better})["f1"]
    assert worse.value == pytest.approx(-found.value) and worse.p == pytest.approx(found.p, abs=0.01)
