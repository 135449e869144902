"""Sentences of a text."""

from __future__ import annotations

from unlimiformer.text.sentences import split_sentences, whole_sentences


def test_split_sentences():
    text = "It is. Is it? 'Yes!' said no one"
    assert [text[start:end] for start, end in split_sentences(text)] == ["It is.", " Is it?", " 'Yes!'", " said no one"]
    assert split_sentences("  ") == []


def test_a_sentence_that_breaks_off_is_left_out():
    assert whole_sentences("He left. She stayed and") == "He left."
    assert whole_sentences('"Go!" he said. "No,') == '"Go!" he said.'
    assert whole_sentences("He left.") == "He left."


def test_a_text_without_a_whole_sentence_stays():
    assert whole_sentences("a king and his") == "a king and his"
    assert whole_sentences("") == ""
