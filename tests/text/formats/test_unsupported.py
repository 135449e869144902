"""Files from which no text can be taken are recognised, and the message says what to do."""

from __future__ import annotations

import gzip
import io
import sys

import pytest
from document_files import make_zip

from unlimiformer.cli.loading import iter_input
from unlimiformer.errors import InputError
from unlimiformer.text.formats import extract
from unlimiformer.text.formats.unsupported import detect
from unlimiformer.text.sources import iter_text

_CONTENT_TYPES = ("[Content_Types].xml", "<Types/>" * 40)
FILES = {
    "an Excel workbook (XLSX)": (make_zip(_CONTENT_TYPES, ("xl/workbook.xml", "<x/>")), "LibreOffice"),
    "an Office document (DOCX, XLSX or PPTX)": (make_zip(_CONTENT_TYPES), "LibreOffice"),
    "an OpenDocument text (ODT)": (make_zip(("mimetype", "application/vnd.oasis.opendocument.text")), "pandoc"),
    "a ZIP archive": (make_zip(("password/notes.txt", "hello")), "unzip"),
    "an RTF document": (b"{\\rtf1\\ansi Hello.}", "LibreOffice"),
    "an old Microsoft Office document (DOC, XLS or PPT)": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "soffice"),
    "a gzip archive": (gzip.compress(b"plain text"), "gunzip"),
    "a PNG image": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "tesseract"),
    "a JPEG image": (b"\xff\xd8\xff\xe0\x00\x10JFIF", "tesseract"),
    "a program (ELF)": (b"\x7fELF\x02\x01\x01" + bytes(20), "text file"),
}


@pytest.mark.parametrize("name", FILES)
def test_known_formats_are_named(name):
    content, tool = FILES[name]
    with pytest.raises(InputError) as error:
        extract(content, "book")
    assert str(error.value).startswith(f"book is {name}, which cannot be read: ")
    assert tool in str(error.value)


def test_the_message_names_the_file(tmp_path):
    path = tmp_path / "scan.png"
    path.write_bytes(FILES["a PNG image"][0])
    with pytest.raises(InputError) as error:
        list(iter_text(path))
    assert str(error.value) == (
        f"{path} is a PNG image, which cannot be read: recognise its text first, for example with tesseract"
    )


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FILES["a PNG image"][0])))
    with pytest.raises(InputError, match="standard input is a PNG image"):
        iter_input("-")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"<html><p>From a pipe.")))
    assert "".join(iter_input("-")) == "From a pipe."


@pytest.mark.parametrize(
    "text",
    ["", "P", "PK", "%PDF is a format", "Rar! said the dog", "ELF", "BZh is bzip2", "{rtf}", "GIF89a", "<b>bold"],
)
def test_plain_text_is_not_mistaken_for_a_format(text):
    assert detect(text.encode()) is None
    assert extract(text.encode(), "text").text == text
