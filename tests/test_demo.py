"""The demo's parts, on a tiny model."""

from __future__ import annotations

from tiny_models import WINDOW, make

from unlimiformer import Unlimiformer
from unlimiformer.demo import FACTS, Fact, ask, draw, plant
from unlimiformer.qa import QuestionFormat


def test_facts_are_planted_whole_and_in_their_places():
    text = "\n".join(f"line {i}" if i % 3 else "" for i in range(300))
    planted = plant(text, FACTS)
    for fact in FACTS:
        at = planted.index(f"\n\n{fact.sentence}\n")
        assert abs(at / len(planted) - fact.place) < 0.06
    without = "".join(planted.split())
    for fact in FACTS:
        without = without.replace("".join(fact.sentence.split()), "")
    assert without == "".join(text.split())
    assert plant("one line", [Fact(0.9, "A.", "?")]).endswith("\nA.\n")


def test_both_answers_and_the_picture(tokenizer, book, tmp_path):
    u = Unlimiformer(make("t5"), tokenizer, window=WINDOW, top_k=9)
    answers = list(ask(u, book, ["w1 w2", "w3"], QuestionFormat(form="w9 {question} w8")))
    assert [answer.question for answer in answers] == ["w1 w2", "w3"]
    for answer in answers:
        assert answer.truncated != answer.unlimited
        assert 1 <= len(answer.passages) <= 2
        figures = answer.figures()
        assert figures["source_tokens"] > 200 and figures["memory_bytes"] > 0
        assert book[figures["passages"][0]["start"] : figures["passages"][0]["end"]]
    draw(answers, tmp_path / "where.png", "a book")
    assert (tmp_path / "where.png").read_bytes().startswith(b"\x89PNG")
