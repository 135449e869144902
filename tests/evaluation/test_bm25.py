"""Word search as a baseline: which passages it selects, and that the plain model answers from them."""

from __future__ import annotations

import pytest
from conftest import make_tokenizer
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make

from unlimiformer import UnlimiformerConfig
from unlimiformer.evaluation.bm25 import BM25Search
from unlimiformer.evaluation.methods import Answerer, Item, Reply
from unlimiformer.qa import QuestionFormat


class WordTokenizer:
    """One token per word."""

    is_fast = True

    def __call__(self, text, return_offsets_mapping=False, **_):
        words, offsets, start = text.split(), [], 0
        for word in words:
            start = text.index(word, start)
            offsets.append((start, start + len(word)))
            start += len(word)
        return {"input_ids": list(range(len(words))), "offset_mapping": offsets}


def _sentence(words: str, length: int = 70) -> str:
    return " ".join([*words.split(), *["filler"] * (length - len(words.split()))]) + "."


PASSAGES = ("a miller", "the giant slept", "the queen sang", "bread and butter")
DOCUMENT = " ".join(_sentence(words) for words in PASSAGES)


def _select(question, budget):
    return [
        DOCUMENT[start:end].strip() for start, end in BM25Search(DOCUMENT, WordTokenizer()).select(question, budget)
    ]


def test_passages_with_the_words_of_the_question_are_selected():
    assert _select("Who was the queen?", 70) == [_sentence("the queen sang")]


def test_passages_come_in_document_order_and_within_the_budget():
    selected = _select("Did the queen meet a giant?", 150)
    assert selected == [_sentence("the giant slept"), _sentence("the queen sang")]


def test_without_a_question_the_first_passages_are_selected():
    assert _select(None, 80) == [_sentence("a miller")]


def test_a_passage_longer_than_the_budget_is_cut():
    assert _select("queen", 3) == ["the queen sang"]


@pytest.mark.parametrize(
    ("model", "settings"),
    [("t5", {"window": WINDOW}), ("llama", {"window": 64, "block": 8, "top_k": 70})],
    ids=["encoder-decoder", "decoder-only"],
)
def test_the_plain_model_answers_from_the_passages(model, settings):
    tokenizer = make_tokenizer()
    model = tiny_decoder(model) if model == "llama" else make(model)
    document = ". ".join(" ".join(f"w{10 * n + i % 10}" for i in range(70)) for n in range(1, 6)) + "."
    generation = {"max_new_tokens": 5, "do_sample": False, "num_beams": 1}
    question_format = QuestionFormat(form="{question} ")
    answerer = Answerer.wrap(model, tokenizer, UnlimiformerConfig(**settings), question_format, generation, "bm25")
    with answerer.wrapped as wrapped:
        engine = wrapped.engine
        room_behind_question = engine.truncated_room(generation) - 2
        budget = engine.top_k if engine.kind == "decoder-only" else room_behind_question
        seen = BM25Search(document, tokenizer).select("w33 w34", budget)
        passages = "\n".join(document[start:end].strip() for start, end in seen)
        text, prompt = (f"w33 w34 {passages}", None) if engine.kind == "encoder-decoder" else (passages, "w33 w34")
        expected = engine.truncated_generate([text], [prompt], generation)[0]
        assert answerer.answers([Item("a", document, "w33 w34", ("w1",))]) == [Reply(expected, seen)]
        assert "w33" in passages and "w10" not in passages
