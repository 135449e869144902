"""Sentences of a text."""

from __future__ import annotations

from unlimiformer.text.sentences import split_sentences, whole_sentences


def test_split_sentences():
    text = "It is. Is it? 'Yes!' said no one"
    assert [text[start:end] for start, end in split_sentences(text)] == ["It is.", " Is it?", " 'Yes!'", " said no one"]
    assert split_sentences("  ") == []


def test_abbreviations_initials_and_numbers_do_not_end_a_sentence():
    text = "Mr. J. R. Smith, e.g. of St. Ives, paid 3.50 pounds. Dr. Who? No."
    assert [text[start:end].strip() for start, end in split_sentences(text)] == [
        "Mr. J. R. Smith, e.g. of St. Ives, paid 3.50 pounds.",
        "Dr. Who?",
        "No.",
    ]


def test_many_full_stops_take_no_time():
    text = "." * 200_000 + "x"
    assert split_sentences(text) == [(0, len(text))]


def test_sentences_without_spaces():
    text = "他走了。她留下了！真的？"
    assert [text[start:end] for start, end in split_sentences(text)] == ["他走了。", "她留下了！", "真的？"]


def test_a_sentence_that_breaks_off_is_left_out():
    assert whole_sentences("He left. She stayed and") == "He left."
    assert whole_sentences('"Go!" he said. "No,') == '"Go!" he said.'
    assert whole_sentences("He left.") == "He left."


def test_a_text_without_a_whole_sentence_stays():
    assert whole_sentences("a king and his") == "a king and his"
    assert whole_sentences("") == ""
