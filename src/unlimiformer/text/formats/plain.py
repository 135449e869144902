"""Plain text in any encoding; Markdown is read as it is."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...errors import InputError

_PART_BYTES = 1 << 16
_SAMPLE_BYTES = 1 << 18  # from which an encoding is guessed
_CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))
_MOST_CONTROL = 0.01  # of the bytes of a text in an old encoding
_COHERENCE_MARGIN = 0.1
_CENTRAL_EUROPEAN = ("Croatian", "Czech", "Hungarian", "Polish", "Romanian", "Slovak", "Slovene")
_BYTE_ORDER_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


def decode(data: bytes, name: str) -> str:
    """The text of some bytes, with `\\n` line ends and without a byte order mark."""
    return "".join(decode_parts([data], find_encoding([data], name), name))


def iter_plain_file(path: Path) -> Iterator[str]:
    """The text of a file in pieces, which are read as they are consumed."""
    with path.open("rb") as file:
        encoding = find_encoding(iter(lambda: file.read(_PART_BYTES), b""), str(path))
        file.seek(0)
        yield from decode_parts(iter(lambda: file.read(_PART_BYTES), b""), encoding, str(path))


def find_encoding(parts: Iterable[bytes], name: str) -> str:
    """The encoding of a text: by its byte order mark, UTF-8 if it is valid, else the most likely one."""
    parts = iter(parts)
    head = next(parts, b"")
    for mark, encoding in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return encoding
    decoder = codecs.getincrementaldecoder("utf-8")()
    before = b""
    for part in itertools.chain([head], parts, [b""]):
        try:
            decoder.decode(part, final=not part)
        except UnicodeDecodeError:
            sample = before + part
            while len(sample) < _SAMPLE_BYTES and (more := next(parts, b"")):
                sample += more
            return _guess_encoding(sample[:_SAMPLE_BYTES], name)
        before = part or before
    return "utf-8"


def _guess_encoding(sample: bytes, name: str) -> str:
    from charset_normalizer import from_bytes

    control = 1 - len(sample.translate(None, _CONTROL)) / len(sample)
    matches = list(from_bytes(sample)) if control <= _MOST_CONTROL else []
    if not matches:
        raise InputError(
            f"{name} is not a text, and not of a format that is known; expected a text, a PDF, an EPUB book, a Word "
            "document (DOCX), an HTML page or subtitles: convert it to one of them"
        )
    for match in matches:  # several encodings can fit equally well; the most common one is preferred
        is_as_good = match.chaos <= matches[0].chaos and match.coherence >= matches[0].coherence - _COHERENCE_MARGIN
        if is_as_good and "cp1252" in match.could_be_from_charset and match.language not in _CENTRAL_EUROPEAN:
            return "cp1252"
    return matches[0].encoding


def decode_parts(parts: Iterable[bytes], encoding: str, name: str) -> Iterator[str]:
    """The text of some bytes, which may be cut anywhere."""
    decoder = codecs.getincrementaldecoder(encoding)()
    decoded_bytes, is_first, ends_in_return = 0, True, False
    for part in itertools.chain(parts, [b""]):
        try:
            text = decoder.decode(part, final=not part)
        except UnicodeDecodeError as error:
            position = max(0, decoded_bytes + len(part) - len(error.object) + error.start)
            raise InputError(
                f"{name} seems to be {encoding}, but byte {position} is {error.object[error.start]:#04x}; "
                "convert it to UTF-8, for example with iconv"
            ) from None
        decoded_bytes += len(part)
        if is_first and text:
            text, is_first = text.removeprefix("\ufeff"), False
        if ends_in_return:
            text = "\r" + text
        ends_in_return = text.endswith("\r") and bool(part)
        yield (text[:-1] if ends_in_return else text).replace("\r\n", "\n").replace("\r", "\n")
