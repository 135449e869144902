"""PDF, by pdfium: the text of every page in reading order, with page numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from ctypes import byref
from typing import Any

from ...errors import InputError
from ..document_text import DocumentText
from .base import Format
from .pdf_layout import Line, Page, assemble

_PDFIUM = threading.Lock()  # pdfium has global state
_FEWEST_CHARACTERS = 20  # of a page on average; a scanned document has none, or only what a scanner stamped on it


class PdfFormat(Format):
    """Portable Document Format."""

    name = "a PDF"
    suffixes = (".pdf",)

    def recognises(self, head: bytes, suffix: str) -> bool:
        """By the first bytes; some programs write a few bytes before the signature."""
        return b"%PDF-" in head[:1024]

    def extract(self, data: bytes, name: str) -> DocumentText:
        """The text of all pages."""
        import pypdfium2

        with _PDFIUM:
            try:
                document = pypdfium2.PdfDocument(data)
            except pypdfium2.PdfiumError as error:
                if "password" in str(error).lower() or "security" in str(error).lower():
                    raise InputError(
                        f"{name} is an encrypted PDF; remove its password first, for example with qpdf --decrypt"
                    ) from None
                raise InputError(f"{name} is a damaged PDF ({error}); repair it, for example with qpdf") from None
            try:
                pages = list(_read_pages(document))
            except pypdfium2.PdfiumError as error:
                raise InputError(f"{name} is a damaged PDF ({error}); repair it, for example with qpdf") from None
            finally:
                document.close()
        characters = sum(len(line.text.strip()) for page in pages for line in page.lines)
        if characters < _FEWEST_CHARACTERS * len(pages) or not characters:
            raise InputError(
                f"{name} is a PDF of {len(pages)} pages with {characters} characters of text: it seems to be scanned; "
                "recognise its text first, for example with ocrmypdf"
            )
        return assemble(pages)


def _read_pages(document: Any) -> Iterator[Page]:
    for index in range(len(document)):
        page = document[index]
        text_page = page.get_textpage()
        try:
            label = document.get_page_label(index) or str(index + 1)
            yield Page(f"p. {label}", list(_read_lines(text_page)))
        finally:
            text_page.close()
            page.close()


def _read_lines(text_page: Any) -> Iterator[Line]:
    for index in range(text_page.count_rects()):
        left, bottom, right, top = text_page.get_rect(index)
        text = text_page.get_text_bounded(left, bottom, right, top)
        yield Line(text, left, bottom, right, top, _font_height(text_page, left, bottom, right, top))


def _font_height(text_page: Any, left: float, bottom: float, right: float, top: float) -> float:
    """Height of the font's box at the beginning of a line: the same for letters with and without descenders."""
    from pypdfium2 import raw

    character = raw.FPDFText_GetCharIndexAtPos(text_page, left + 0.5, (bottom + top) / 2, right - left, 2.0)
    box = raw.FS_RECTF()
    if character >= 0 and raw.FPDFText_GetLooseCharBox(text_page, character, byref(box)):
        return abs(box.top - box.bottom)
    return top - bottom
