"""The demo's answers and its plot, with a tiny model."""

from __future__ import annotations

from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.demo import ask, draw
from unlimiformer.qa import QuestionFormat


def test_answers_and_plot(tokenizer, book, tmp_path):
    wrapped = Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=9)
    answers = list(ask(wrapped, book, ["w1 w2", "w3"], QuestionFormat(form="w9 {question} w8")))
    assert [answer.question for answer in answers] == ["w1 w2", "w3"]
    for answer in answers:
        assert answer.truncated != answer.unlimited and answer.word_search
        assert 1 <= len(answer.passages) <= 2
        figures = answer.figures()
        assert figures["source_tokens"] > 200 and figures["memory_bytes"] > 0
        assert book[figures["passages"][0]["start"] : figures["passages"][0]["end"]]
    draw(answers, tmp_path / "where.png", "a book")
    assert (tmp_path / "where.png").read_bytes().startswith(b"\x89PNG")
