"""Chapters, sections and parts of a document."""

from __future__ import annotations

from itertools import pairwise

import pytest
from summary_helpers import make_story

from unlimiformer.summaries.outline import Chapter, outline
from unlimiformer.summaries.parts import divide_into_parts


def _sections(chapters):
    return [section for chapter in chapters for section in chapter.sections]


def test_chapters_follow_numbered_headings(tokenizer):
    chapters = outline(make_story(3), tokenizer, 100)
    assert [chapter.title for chapter in chapters] == ["CHAPTER 1", "CHAPTER 2", "CHAPTER 3"]


def test_sections_are_the_whole_text_in_whole_sentences(tokenizer):
    story = make_story(3)
    sections = _sections(outline(story, tokenizer, 100))
    assert "".join("".join(story[start:end].split()) for start, end in sections) == "".join(story.split())
    assert all(story[start:end].endswith(".") for start, end in sections)


def test_sections_have_about_the_tokens_that_they_may(tokenizer):
    story = make_story(2)
    lengths = [len(tokenizer(story[start:end]).input_ids) for start, end in _sections(outline(story, tokenizer, 100))]
    assert min(lengths) > 60
    assert max(lengths) < 130


def test_a_sentence_without_end_is_cut(tokenizer):
    text = " ".join(f"w{number % 90}" for number in range(1000))
    sections = _sections(outline(text, tokenizer, 100))
    assert len(sections) == 10
    assert all(first[1] == second[0] for first, second in pairwise(sections))


def test_short_chapters_are_joined_to_the_next(tokenizer):
    contents = "\n\n".join(f"CHAPTER {number}" for number in (1, 2, 3))
    chapters = outline(f"{contents}\n\n{make_story(3)}", tokenizer, 200)
    assert [chapter.title for chapter in chapters] == ["CHAPTER 1", "CHAPTER 2", "CHAPTER 3"]


def test_a_text_without_headings_is_one_chapter(tokenizer):
    text = " ".join("The sun rose over the hills again." for _ in range(200))
    (chapter,) = outline(text, tokenizer, 100)
    assert chapter.title is None


def test_notices_of_transcribers_are_left_out(tokenizer):
    story = make_story(2)
    notice = "Produced by Some One and the Online Distributed Proofreading Team"
    text = f"{notice}\n\n{story}\n\nEnd of Project Gutenberg's Story"
    sections = _sections(outline(text, tokenizer, 100))
    read = "".join(text[start:end] for start, end in sections)
    assert "Proofreading" not in read and "Gutenberg" not in read
    assert "".join(read.split()) == "".join(story.split())


@pytest.mark.parametrize(("words", "expected"), [(45, 1), (90, 2), (200, 4), (5000, 10)])
def test_parts_have_two_sentences_or_more(words, expected):
    chapters = [Chapter(None, [(number, number + 1) for number in range(10)])]
    parts = divide_into_parts(chapters, words, by_chapter=False)
    assert len(parts) == expected
    assert [section for part in parts for section in part.sections] == chapters[0].sections
    assert sum(part.words for part in parts) <= words


def test_a_chapter_can_be_a_part():
    chapters = [Chapter("One", [(0, 5), (5, 9)]), Chapter("Two", [(9, 12)])]
    parts = divide_into_parts(chapters, 60, by_chapter=True)
    assert [(part.title, part.sections, part.words) for part in parts] == [
        ("One", [(0, 5), (5, 9)], 60),
        ("Two", [(9, 12)], 60),
    ]
