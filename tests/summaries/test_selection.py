"""Which sentences about the sections of a part are kept."""

from __future__ import annotations

from unlimiformer.summaries.selection import Statement, select_statements


def _select(sentences: list[str], words: int) -> list[str]:
    statements = [Statement(text, (number, number + 1)) for number, text in enumerate(sentences)]
    return [statement.text for statement in select_statements(statements, words)]


def test_all_are_kept_if_there_is_room():
    sentences = ["There Anna sold her horse.", "Then Boris bought the farm."]
    assert _select(sentences, 20) == sentences


def test_what_several_tell_is_kept_and_then_what_is_new():
    sentences = ["It was raining outside again.", "Then Anna sold the white horse.", "So Boris bought the white horse."]
    assert _select(sentences, 6) == ["Then Anna sold the white horse."]
    assert _select(sentences, 12) == sentences[:2]


def test_the_same_is_not_kept_twice():
    sentences = ["Then Anna sold the white horse.", "Anna sold the white horse then.", "It was raining outside again."]
    assert _select(sentences, 12) == [sentences[0], sentences[2]]


def test_at_least_one_is_kept():
    assert len(_select(["Then Anna sold the white horse to Boris."], 2)) == 1
    assert _select([], 20) == []
