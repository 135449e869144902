"""Headings of plain texts and Markdown, and questions that name them."""

from __future__ import annotations

import pytest

from unlimiformer.text.headings import find_sections, named_sections

BOOK = """The Selfish Giant

Every afternoon the children went to play in the giant's garden.
It was large and lovely.

Yes, he said.

CHAPTER IV.

It was winter.

CHAPTER V
The Return

Spring came.
"""


def test_sections_begin_at_headings():
    sections = find_sections(BOOK)
    assert [section.title for section in sections] == ["The Selfish Giant", "CHAPTER IV.", "CHAPTER V The Return"]
    assert [BOOK[section.start :][:7] for section in sections] == ["The Sel", "CHAPTER", "CHAPTER"]
    assert [section.end for section in sections] == [sections[1].start, sections[2].start, len(BOOK)]


def test_markdown():
    sections = find_sections("# Terms of use\n\nText.\n\n## 2. What we keep?\n\nMore.")
    assert [section.title for section in sections] == ["Terms of use", "2. What we keep?"]


@pytest.mark.parametrize("text", ["", "\n\n", "One sentence.", "a line\n\nin lower case\n\n* * *\n\n17"])
def test_text_without_headings(text):
    assert find_sections(text) == []


@pytest.mark.parametrize(
    ("question", "titles", "remainder"),
    [
        ("In the story “The Selfish Giant”: Who went to play?", ["The Selfish Giant"], "Who went to play?"),
        ('Who plays in "the selfish giant"?', ["The Selfish Giant"], "Who plays ?"),
        ("Who is The Selfish Giant, really?", ["The Selfish Giant"], "Who is The Selfish Giant, really?"),
        ("What happens in chapter 4?", ["CHAPTER IV."], "What happens in chapter 4?"),
        ("What happens in Chapter V?", ["CHAPTER V The Return"], "What happens in Chapter V?"),
        ("What did the giant do?", [], "What did the giant do?"),
        ("Who said “yes”?", [], "Who said “yes”?"),
        ("What is in chapter 40?", [], "What is in chapter 40?"),
    ],
)
def test_questions_that_name_sections(question, titles, remainder):
    named = named_sections(question, find_sections(BOOK))
    assert [section.title for section in named.sections] == titles
    assert named.remainder == remainder
    introduces = question.startswith("In the story")
    assert named.question == (remainder if introduces else question)


@pytest.mark.parametrize(("roman", "number"), [("XIV", 14), ("XL", 40), ("XCIX", 99), ("CCCXLIX", 349), ("III", 3)])
def test_roman_numerals(roman, number):
    sections = find_sections(f"CHAPTER {roman}\n\nText.")
    assert named_sections(f"Who is in chapter {number}?", sections).sections == sections


def test_a_question_that_is_only_a_title_is_still_a_question():
    text = "The Golden Bird\n\nOnce there was a king.\n\nThe Fox\n\nHe was old."
    named = named_sections('In the story "The Golden Bird":', find_sections(text))
    assert [section.title for section in named.sections] == ["The Golden Bird"]
    assert named.question == 'In the story "The Golden Bird":'
