"""Where a text begins and ends in a file of Project Gutenberg."""

from __future__ import annotations

import pytest

from unlimiformer.text.body import text_body

STORY = "The Tale\n\nOnce there was a miller.\n\nHe had a cat."


def _body(text: str) -> str:
    start, end = text_body(text)
    return text[start:end].strip()


def test_a_file_of_project_gutenberg():
    text = (
        "The Project Gutenberg eBook of The Tale\n\n*** START OF THE PROJECT GUTENBERG EBOOK THE TALE ***\n\n"
        f"Produced by A. Reader\n\n{STORY}\n\n*** END OF THE PROJECT GUTENBERG EBOOK THE TALE ***\n\nLicense"
    )
    assert _body(text) == STORY


def test_notices_without_marks():
    assert _body(f"Produced by A. Reader and the Proofreading Team\n\n{STORY}") == STORY


@pytest.mark.parametrize(
    "beginning",
    [
        "Copyright law began in England.",
        "The wine that was produced by the monks was good.",
        "By the end of Project Gutenberg's first decade, all was well.",
        "Produced by the monks, the wine was good. " * 50,
    ],
)
def test_any_other_text_is_whole(beginning):
    text = f"{beginning}\n\n{STORY}"
    assert text_body(text) == (0, len(text))


def test_all_books_of_a_file():
    book = "\n\n".join([STORY] * 60)
    text = f"{book}\n\nEnd of the Project Gutenberg EBook\n\n{book}\n\nEnd of the Project Gutenberg EBook"
    assert _body(text).count("miller") == 120


def test_a_text_that_is_only_a_notice_is_whole():
    assert _body("Copyright 1999 by A. Reader") == "Copyright 1999 by A. Reader"
