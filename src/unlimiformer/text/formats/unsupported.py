"""Recognise by its first bytes a file from which no text can be taken here, and say how to get text out of it."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InputError

HEAD_BYTES = 4096
"""Bytes from the start of a file that `detect` needs at most."""


@dataclass(frozen=True)
class FileType:
    """A file format that cannot be read.

    Parameters
    ----------
    name : the format with its article, to follow "is".
    advice : what to do to get plain text.
    """

    name: str
    advice: str


def _extract(program: str) -> str:
    return f"extract its text first, for example with {program}"


def _unpack(program: str) -> str:
    return f"unpack it first, for example with {program}"


_OFFICE = _extract("LibreOffice (soffice --convert-to txt:Text)")
_PANDOC = _extract("pandoc -t plain")
_IMAGE = "recognise its text first, for example with tesseract"
_PROGRAM = "give a text file instead"

# A signature of printable characters is listed only where no text would start with it.
_SIGNATURES: tuple[tuple[bytes, FileType], ...] = (
    (b"{\\rtf", FileType("an RTF document", _OFFICE)),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", FileType("an old Microsoft Office document (DOC, XLS or PPT)", _OFFICE)),
    (b"AT&TFORM", FileType("a DjVu document", _extract("djvutxt"))),
    (b"\x1f\x8b", FileType("a gzip archive", _unpack("gunzip"))),
    (b"BZh91AY&SY", FileType("a bzip2 archive", _unpack("bunzip2"))),
    (b"\xfd7zXZ\x00", FileType("an xz archive", _unpack("unxz"))),
    (b"\x28\xb5\x2f\xfd", FileType("a Zstandard archive", _unpack("unzstd"))),
    (b"7z\xbc\xaf\x27\x1c", FileType("a 7z archive", _unpack("7z x"))),
    (b"Rar!\x1a\x07", FileType("a RAR archive", _unpack("unrar x"))),
    (b"\x89PNG\r\n\x1a\n", FileType("a PNG image", _IMAGE)),
    (b"\xff\xd8\xff", FileType("a JPEG image", _IMAGE)),
    (b"II*\x00", FileType("a TIFF image", _IMAGE)),
    (b"MM\x00*", FileType("a TIFF image", _IMAGE)),
    (b"\x7fELF", FileType("a program (ELF)", _PROGRAM)),
    (b"SQLite format 3\x00", FileType("an SQLite database", "export its text first, for example with sqlite3")),
)

_ZIP_SIGNATURES = (b"PK\x03\x04", b"PK\x05\x06")
# Documents that are ZIP archives, by media types and file names that stand uncompressed near the archive's start.
_ZIP_CONTENTS: tuple[tuple[tuple[bytes, ...], FileType], ...] = (
    ((b"application/vnd.oasis.opendocument.text",), FileType("an OpenDocument text (ODT)", _PANDOC)),
    ((b"application/vnd.oasis.opendocument",), FileType("an OpenDocument file", _OFFICE)),
    ((b"xl/workbook.xml", b"xl/_rels/", b"xl/worksheets/"), FileType("an Excel workbook (XLSX)", _OFFICE)),
    ((b"ppt/presentation.xml", b"ppt/_rels/", b"ppt/slides/"), FileType("a PowerPoint file (PPTX)", _OFFICE)),
    ((b"[Content_Types].xml",), FileType("an Office document (DOCX, XLSX or PPTX)", _OFFICE)),
)
_ZIP = FileType("a ZIP archive", _unpack("unzip"))


def detect(head: bytes) -> FileType | None:
    """Recognise a format by the first `HEAD_BYTES` bytes of a file; None if it may be plain text."""
    if head.startswith(_ZIP_SIGNATURES):
        return next((kind for marks, kind in _ZIP_CONTENTS if any(mark in head for mark in marks)), _ZIP)
    return next((kind for signature, kind in _SIGNATURES if head.startswith(signature)), None)


def refuse_unsupported(head: bytes, name: str) -> None:
    """Raise `InputError` for a file that begins like one of these formats."""
    if (file_type := detect(head)) is not None:
        raise InputError(f"{name} is {file_type.name}, which cannot be read: {file_type.advice}")
