"""Files that are not plain text in UTF-8 are recognised, and the message says what to do."""

from __future__ import annotations

import gzip
import io
import sys
import zipfile

import pytest

from unlimiformer.cli.loading import iter_input
from unlimiformer.errors import InputError
from unlimiformer.text.file_types import detect
from unlimiformer.text.sources import decode_utf8, iter_text


def _zip(*files: tuple[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content, zipfile.ZIP_STORED if name == "mimetype" else None)
    return buffer.getvalue()


_CONTENT_TYPES = ("[Content_Types].xml", "<Types/>" * 40)
FILES = {
    "a PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "pdftotext"),
    "a Word document (DOCX)": (_zip(_CONTENT_TYPES, ("word/document.xml", "<w/>")), "pandoc"),
    "an Excel workbook (XLSX)": (_zip(_CONTENT_TYPES, ("xl/workbook.xml", "<x/>")), "LibreOffice"),
    "an Office document (DOCX, XLSX or PPTX)": (_zip(_CONTENT_TYPES), "LibreOffice"),
    "an EPUB book": (_zip(("mimetype", "application/epub+zip"), ("OEBPS/a.html", "<p>")), "pandoc"),
    "an OpenDocument text (ODT)": (_zip(("mimetype", "application/vnd.oasis.opendocument.text")), "pandoc"),
    "a ZIP archive": (_zip(("password/notes.txt", "hello")), "unzip"),
    "an RTF document": (b"{\\rtf1\\ansi Hello.}", "LibreOffice"),
    "an old Microsoft Office document (DOC, XLS or PPT)": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "soffice"),
    "a gzip archive": (gzip.compress(b"plain text"), "gunzip"),
    "a PNG image": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "tesseract"),
    "a JPEG image": (b"\xff\xd8\xff\xe0\x00\x10JFIF", "tesseract"),
    "a program (ELF)": (b"\x7fELF\x02\x01\x01" + bytes(20), "text file"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [1, 5, 100_000])
def test_known_formats_are_named(name, size):
    content, tool = FILES[name]
    parts = [content[i : i + size] for i in range(0, len(content), size)]
    with pytest.raises(InputError) as error:
        list(decode_utf8(parts, "book"))
    message = str(error.value)
    assert message.startswith(f"book is {name}; only plain text in UTF-8 can be read so far: ")
    assert tool in message


def test_the_message_names_the_file(tmp_path):
    path = tmp_path / "report.pdf"
    path.write_bytes(FILES["a PDF"][0])
    with pytest.raises(InputError) as error:
        list(iter_text(path))
    assert str(error.value) == (
        f"{path} is a PDF; only plain text in UTF-8 can be read so far: "
        "extract its text first, for example with pdftotext"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FILES["a PDF"][0], "standard input is a PDF; only plain text in UTF-8 can be read so far"),
        (b"caf\xe9", "standard input is not UTF-8 (byte 3 is 0xe9); expected text in UTF-8"),
    ],
)
def test_standard_input(monkeypatch, content, message):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    with pytest.raises(InputError) as error:
        list(iter_input("-"))
    assert str(error.value).startswith(message)


def test_another_encoding_names_the_byte_and_the_command():
    with pytest.raises(InputError) as error:
        list(decode_utf8(["Ein Caf\xe9".encode("latin1")], "book.txt"))
    assert str(error.value) == (
        "book.txt is not UTF-8 (byte 7 is 0xe9); expected text in UTF-8: "
        "convert it, for example with: iconv -f latin1 -t utf-8"
    )


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_wide_encodings_are_named(encoding):
    with pytest.raises(InputError) as error:
        list(decode_utf8(["Hello".encode(encoding)], "book.txt"))
    assert f"byte order mark of {encoding.upper()}" in str(error.value)
    assert f"iconv -f {encoding} -t utf-8" in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["", "P", "PK", "%PDF is a format", "Rar! said the dog", "ELF", "BZh is bzip2", "{rtf}", "GIF89a"],
)
def test_plain_text_is_not_mistaken_for_a_format(text):
    assert detect(text.encode()) is None
    assert "".join(decode_utf8([text.encode()], "text")) == text
