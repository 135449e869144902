"""Small documents of every format, made for the tests."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.lib.utils import simpleSplit
from reportlab.pdfgen.canvas import Canvas

PAGE_WIDTH, PAGE_HEIGHT = 595, 842
FONT = "Times-Roman"
Text = tuple[float, float, float, str]
"""Left, bottom, size of the font, and what is written there."""


def make_pdf(pages: Sequence[Sequence[Text]], password: str | None = None) -> bytes:
    """A PDF with texts at given places."""
    buffer = io.BytesIO()
    encryption = None if password is None else StandardEncryption(password, canPrint=0)
    canvas = Canvas(buffer, pagesize=(PAGE_WIDTH, PAGE_HEIGHT), encrypt=encryption, invariant=1)
    for page in pages:
        for left, bottom, size, text in page:
            canvas.setFont(FONT, size)
            canvas.drawString(left, bottom, text)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def set_column(paragraphs: Sequence[str], left: float, top: float, width: float, size: float = 10) -> list[Text]:
    """Paragraphs in lines of at most `width`, the first line of each indented; words are not hyphenated."""
    lines: list[Text] = []
    for paragraph in paragraphs:
        words = simpleSplit("      " + paragraph, FONT, size, width)
        for number, line in enumerate(words):
            lines.append((left + (12 if number == 0 else 0), top, size, line.strip()))
            top -= 1.2 * size
    return lines


def make_zip(*files: tuple[str, str | bytes]) -> bytes:
    """A ZIP archive; a file called `mimetype` is not compressed, as in an EPUB book."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content, zipfile.ZIP_STORED if name == "mimetype" else None)
    return buffer.getvalue()


def make_epub(chapters: Sequence[str], titles: Sequence[str] = (), extra: Sequence[tuple[str, str]] = ()) -> bytes:
    """An EPUB book: the body of each chapter, and titles for its table of contents."""
    items = "".join(
        f'<item id="c{n}" href="c{n}.xhtml" media-type="application/xhtml+xml"/>' for n in range(len(chapters))
    )
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    links = "".join(f'<li><a href="c{n}.xhtml#top">{title}</a></li>' for n, title in enumerate(titles))
    package = (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf"><manifest>'
        '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
        f'{items}</manifest><spine><itemref idref="nav"/>{spine}</spine></package>'
    )
    page = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>no text</title></head><body>{}</body></html>'
    return make_zip(
        ("mimetype", "application/epub+zip"),
        (
            "META-INF/container.xml",
            '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
        ),
        ("OEBPS/book.opf", package),
        ("OEBPS/nav.xhtml", page.format(f"<nav><h1>Contents</h1><ol>{links}</ol></nav>")),
        *((f"OEBPS/c{n}.xhtml", page.format(body)) for n, body in enumerate(chapters)),
        *extra,
    )


def make_docx(body: str) -> bytes:
    """A Word document with this XML as its body."""
    word = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    relationship = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    relations = "http://schemas.openxmlformats.org/package/2006/relationships"
    return make_zip(
        ("[Content_Types].xml", '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>'),
        (
            "_rels/.rels",
            f'<Relationships xmlns="{relations}">'
            f'<Relationship Id="r1" Type="{relationship}" Target="word/document.xml"/></Relationships>',
        ),
        ("word/document.xml", f'<?xml version="1.0"?><w:document {word}><w:body>{body}</w:body></w:document>'),
    )


def paragraph(text: str, style: str | None = None) -> str:
    """A paragraph of a Word document."""
    properties = "" if style is None else f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>'
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


SUBTITLES = """1
00:00:01,000 --> 00:00:03,500
<i>The ship left</i> the harbour

2
00:00:03,600 --> 00:00:06,000
at dawn.

3
01:02:07,000 --> 01:02:09,000
- Who was on board?
"""

SAMPLES: dict[str, bytes] = {
    ".pdf": make_pdf(
        [
            set_column([f"{word} lighthouse had a keeper, Marten Oak. " * 8], 72, 760, 450)
            for word in ("This", "Each", "That")
        ]
    ),
    ".epub": make_epub(["<h1>Chapter 1</h1><p>The lighthouse keeper was called Marten Oak.</p>" * 3], ["Chapter 1"]),
    ".docx": make_docx(paragraph("The lighthouse keeper was called Marten Oak.") * 4),
    ".html": b"<html><body><h1>Keeper</h1><p>The lighthouse keeper was called <b>Marten Oak</b>.</body></html>",
    ".srt": SUBTITLES.encode(),
    ".vtt": b"WEBVTT\n\n00:01.000 --> 00:04.000\n<v Anna>The keeper was called Marten Oak.\n",
    ".md": b"# Keeper\n\nThe lighthouse keeper was called Marten Oak.\n",
    ".txt": "The lighthouse keeper, who liked cafés, was called Marten Oak.".encode("cp1252"),
}
"""One document of each format, by suffix."""
