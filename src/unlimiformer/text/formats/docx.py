"""Word documents (DOCX), by mammoth: headings, lists, tables and footnotes."""

from __future__ import annotations

import io

from ...errors import InputError
from ..document_text import DocumentText
from .base import Format
from .html import html_text
from .zip_file import open_zip


class DocxFormat(Format):
    """A document of Word, or of another program that saves its format."""

    name = "a Word document (DOCX)"
    suffixes = (".docx", ".docm")

    def recognises(self, head: bytes, suffix: str) -> bool:
        """By a name of its files that stands near the start, or by its suffix."""
        is_word = b"word/document.xml" in head or b"word/_rels/" in head
        return head.startswith(b"PK\x03\x04") and (is_word or suffix in self.suffixes)

    def extract(self, data: bytes, name: str) -> DocumentText:
        """The text of the body, with footnotes at its end."""
        import mammoth

        with open_zip(data, name, self.name):
            pass  # bounds its size
        try:
            page = mammoth.convert_to_html(io.BytesIO(data), convert_image=mammoth.images.img_element(_no_image)).value
        except Exception as error:  # whatever the library meets in a damaged file
            raise InputError(
                f"{name} is {self.name}, but damaged ({type(error).__name__}: {error}); "
                "open it in another program and save it"
            ) from None
        text = html_text(f"<body>{page}</body>", name)
        if not text:
            raise InputError(f"{name} is {self.name} without text; expected some")
        return DocumentText(text)


def _no_image(image: object) -> dict[str, str]:
    del image
    return {"src": ""}
