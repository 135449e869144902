"""File formats from which text is taken. A new one is one file here, and one line in `FORMATS`."""

from __future__ import annotations

from ..document_text import DocumentText
from .base import Format
from .docx import DocxFormat
from .epub import EpubFormat
from .html import HtmlFormat
from .pdf import PdfFormat
from .plain import decode, iter_plain_file
from .subtitles import SubtitleFormat
from .unsupported import HEAD_BYTES, refuse_unsupported

FORMATS: tuple[Format, ...] = (PdfFormat(), EpubFormat(), DocxFormat(), SubtitleFormat(), HtmlFormat())
PLAIN_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst")
SUFFIXES = (*PLAIN_SUFFIXES, *(suffix for item in FORMATS for suffix in item.suffixes))
"""Of the files that a folder is searched for."""


def find_format(head: bytes, suffix: str, name: str) -> Format | None:
    """The format of a file that begins with these bytes; None for plain text. One without text is refused."""
    found = next((item for item in FORMATS if item.recognises(head[:HEAD_BYTES], suffix.lower())), None)
    if found is None:
        refuse_unsupported(head[:HEAD_BYTES], name)
    return found


def extract(data: bytes, name: str, suffix: str = "") -> DocumentText:
    """The text of a file's bytes; messages call it `name`."""
    found = find_format(data[:HEAD_BYTES], suffix, name)
    return DocumentText(decode(data, name)) if found is None else found.extract(data, name)


__all__ = ["FORMATS", "HEAD_BYTES", "SUFFIXES", "extract", "find_format", "iter_plain_file"]
