"""The text of PDFs: columns, running heads, footnotes, tables, hyphens; and files that cannot be read."""

from __future__ import annotations

import pytest
from document_files import FONT, make_pdf, set_column
from reportlab.pdfbase.pdfmetrics import stringWidth

from unlimiformer.errors import InputError
from unlimiformer.text.document_text import location_at
from unlimiformer.text.formats.pdf import PdfFormat
from unlimiformer.text.formats.pdf_layout import Line, Page, assemble

LONG = [
    f"Paragraph {n} says that the keeper walked along the shore, counted {n} boats and wrote their names into his book."
    for n in ("one", "two", "three", "four")
]


def extract(pages):
    return PdfFormat().extract(make_pdf(pages), "paper.pdf")


def test_two_columns_are_read_one_after_the_other_below_a_title():
    left, right = set_column(LONG[:2], 72, 690, 210), set_column(LONG[2:], 310, 690, 210)
    interleaved = [line for pair in zip(left, right, strict=True) for line in pair]
    text = extract([[(150, 740, 18, "On the Keeping of Lighthouses"), *interleaved]]).text
    assert text == "# On the Keeping of Lighthouses\n\n" + "\n\n".join(LONG)


def test_running_heads_and_page_numbers_are_left_out_and_sentences_cross_pages():
    words = " ".join(f"word{n}" for n in range(180)).split()
    pages = []
    for number in range(6):
        body = set_column([" ".join(words[30 * number : 30 * number + 30])], 60, 700, 400)
        body[0] = (60, *body[0][1:])  # the paragraph goes on
        head = (72, 780, 9, "KEEPING OF LIGHTHOUSES") if number % 2 else (300, 780, 9, f"Chapter {number}")
        pages.append([head, *body, (290, 40, 10, str(number + 7))])
    document = extract(pages)
    assert document.text == " ".join(words)
    assert [location.label for location in document.locations] == [f"p. {n}" for n in range(1, 7)]
    for number in range(6):
        start = document.text.index(f"word{30 * number}")
        assert location_at(document.locations, start) == f"p. {number + 1}"


def test_a_footnote_stands_behind_the_paragraph_that_its_page_breaks():
    line = "The keeper lit the lamp every evening, and he"
    first = [
        (72, 700, 10, line),
        (72 + stringWidth(line, FONT, 10) + 1, 704, 6, "1"),
        (72, 60, 8, "1 In winter."),
    ]
    second = [(72, 700, 10, "put it out at dawn, before the boats came in.")]
    document = extract([first, second])
    assert document.text == f"{line} put it out at dawn, before the boats came in.\n\nNote 1: In winter."
    assert location_at(document.locations, document.text.index("winter")) == "p. 1"
    assert location_at(document.locations, document.text.index("dawn")) == "p. 2"


def test_the_rows_of_a_table_stay_lines():
    rows = [("Name", "Boats", "Year"), ("Anna", "12", "1871"), ("Bertrand", "3", "1902"), ("Cecilia", "44", "1915")]
    table = [
        (72 + 150 * column, 600 - 14 * row, 10, cell)
        for row, cells in enumerate(rows)
        for column, cell in enumerate(cells)
    ]
    text = extract([[*set_column(LONG[:2], 72, 700, 450), *table]]).text
    lines = [" ".join(line.split()) for line in text.split("\n")]
    assert [line for line in lines if line in {" ".join(row) for row in rows}] == [" ".join(row) for row in rows]


def test_a_table_that_fills_pages_keeps_its_rows():
    rows = [
        [
            (72 + 90 * column, 700 - 14 * row, 10, str(1000 * page + 10 * row + column))
            for row in range(9)
            for column in range(4)
        ]
        for page in range(4)
    ]
    text = extract(rows).text
    assert [word for word in text.split() if word.endswith("0")] == [
        str(1000 * page + 10 * row) for page in range(4) for row in range(9)
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["the keeper was a philo\x02", "sopher of the sea and"], "the keeper was a philosopher of the sea and"),
        (["the keeper was a philo-", "sopher of the sea and"], "the keeper was a philosopher of the sea and"),
        (
            ["a well-known man who was well-", "known to all of them"],
            "a well-known man who was well-known to all of them",
        ),
        (["they came from Anglo-", "Saxon lands to this coast"], "they came from Anglo-Saxon lands to this coast"),
        (["from 1914-", "1918 he was away from here"], "from 1914- 1918 he was away from here"),
        (["the ﬁrst oﬃce of the", "man on this coast"], "the first office of the man on this coast"),
    ],
)
def test_hyphens_at_line_ends(lines, expected):
    page = Page("p. 1", [Line(text, 0, 100 - 12 * n, 200, 108 - 12 * n, 10) for n, text in enumerate(lines)])
    assert assemble([page]).text == expected


def test_headings_are_marked():
    text = extract([[(72, 740, 16, "2 Results"), *set_column(LONG[:2], 72, 700, 450)]]).text
    assert text.startswith("# 2 Results\n\nParagraph one")


def test_a_scanned_pdf_is_refused():
    with pytest.raises(InputError, match=r"paper\.pdf is a PDF of 3 pages with 0 characters .* ocrmypdf"):
        extract([[], [], []])


def test_an_encrypted_pdf_is_refused():
    data = make_pdf([[(72, 700, 10, "secret text of the keeper")]], password="oak")
    with pytest.raises(InputError, match=r"paper\.pdf is an encrypted PDF; remove its password first"):
        PdfFormat().extract(data, "paper.pdf")


def test_a_damaged_pdf_is_refused():
    with pytest.raises(InputError, match=r"paper\.pdf is a damaged PDF"):
        PdfFormat().extract(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "paper.pdf")
